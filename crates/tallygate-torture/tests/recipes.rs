//! The checker catches every wrong recipe, by its histories.

use tallygate_testkit::Server;
use tallygate_torture::checker::{Facts, check};
use tallygate_torture::history::{Call, End, Log, Part, Seen, StateKey};

#[tokio::test(flavor = "multi_thread")]
async fn every_wrong_recipe_is_caught() {
    let redis = Server::redis().start();
    let server = tallygate_recipes::Server::connect(&redis.url(), "tallygate").await.unwrap();
    let histories = tallygate_recipes::histories(server, "torture").await.unwrap();
    assert!(histories.len() >= 16, "{}", histories.len());
    for history in histories {
        let start = history.records.iter().map(|record| record.decided_at.as_micros()).min().unwrap();
        let call = |record: &tallygate::history::Record| {
            let at = record.decided_at.as_micros();
            let seen = Seen { fits: record.allowed, remaining: None, retry_after: None, reset_after: None };
            let source = "store".to_owned();
            Call {
                sent: at - start,
                ended: at - start,
                parts: vec![Part { seen: Some(seen), ..Part::new(0, record.cost) }],
                end: End::Decided { allowed: record.allowed, at: Some(at), split: false, source },
                flood: true,
            }
        };
        let log = Log { calls: history.records.iter().map(call).collect(), ..Log::default() };
        let (policy, subject) = ("recipe".to_owned(), history.recipe.to_owned());
        let keys = vec![StateKey { policy, subject, limit: history.limit, split: false, holds: None }];
        let found = check(&log, &Facts { keys, deadline: 0, step_back: 0, spent: None });
        // A key that never expires is found on the server, as after every round.
        let caught = !found.violations.is_empty() || history.orphans > 0;
        assert!(caught, "recipe {} was not caught", history.recipe);
    }
}
