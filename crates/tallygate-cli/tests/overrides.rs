//! `override`: set, listed, previewed and removed on a real server, and what is refused.

use serde_json::{Value, json};
use tallygate_testkit::Server;

use super::{Ran, run};

const POLICIES: &str = "policies: [{name: per-user, domain: api, partition: [user], limit: 5/h}]\n";

struct Rig {
    server: Server,
    folder: tempfile::TempDir,
}

impl Rig {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("policies.yaml"), POLICIES).expect("it is ours");
        Self { server: Server::redis().start(), folder }
    }

    fn run(&self, args: &[&str]) -> Ran {
        let url = self.server.url();
        run([args, &["--store", &url]].concat())
    }

    /// With the policies.
    fn with(&self, args: &[&str]) -> Ran {
        let config = self.folder.path().join("policies.yaml").display().to_string();
        self.run(&[args, &["--config", &config]].concat())
    }

    fn listed(&self) -> Value {
        let ran = self.run(&["override", "list", "--json"]);
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", ran.stdout, ran.stderr))
    }
}

#[test]
fn an_override_is_set_listed_explained_and_removed() {
    let rig = Rig::start();
    assert!(rig.run(&["override", "list"]).stdout.starts_with("there are no overrides"));
    let hostile = "launch \u{1b}[31mday";
    let set = ["override", "set", "per-user", "user=42", "--limit", "50/h", "--reason", hostile, "--author", "ada"];
    let ran = rig.with(&[&set[..], &["--expires-in", "2h"]].concat());
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(
        ran.stdout.starts_with("user=42 of policy `per-user` in domain `api` has the limit 50/h, 800ms from now on")
    );
    let listed = rig.run(&["override", "list"]).stdout;
    assert!(listed.contains("set by ada") && !listed.contains('\u{1b}'), "{listed}");
    let listed = rig.listed();
    let (one, revision) = (&listed["overrides"][0], listed["revision"].to_string());
    assert_eq!((&one["match"], &one["limit"], &one["author"]), (&json!({"user": "42"}), &json!("50/h"), &json!("ada")));
    assert_eq!(one["expires_at_ms"].as_u64().unwrap() - one["set_at_ms"].as_u64().unwrap(), 7_200_000);
    let explained = || rig.with(&["explain", "user=42"]).stdout;
    tallygate_testkit::wait::until("the override", std::time::Duration::from_secs(20), || {
        explained().contains("50 of 50").then_some(())
    });
    // Lines are broken to the width of the terminal.
    let words = explained().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("the live override of user=42 applies: 50/h, set by ada"), "{words}");
    let remove = ["override", "remove", "per-user", "user=42", "--domain", "api"];
    let stale = rig.run(&[&remove[..], &["--revision", "1"]].concat());
    assert_eq!(stale.code, 2);
    assert!(stale.stderr.contains("the overrides were changed meanwhile"), "{}", stale.stderr);
    assert_eq!(rig.run(&[&remove[..], &["--revision", &revision]].concat()).code, 0);
    tallygate_testkit::wait::until("its end", std::time::Duration::from_secs(20), || {
        (rig.listed()["overrides"] == json!([])).then_some(())
    });
    let gone = rig.run(&remove);
    assert_eq!(gone.code, 2);
    assert!(gone.stderr.contains("there is no override for user=42"), "{}", gone.stderr);
}

#[test]
fn a_preview_shows_both_sides_and_changes_nothing() {
    let rig = Rig::start();
    let caller = ["override", "preview", "per-user", "--limit", "2/h", "--caller", "user=1", "--caller", "path=/x"];
    let ran = rig.with(&caller);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (
            0,
            "user=1\n  present   5/h: allowed  5 of 5 left\n  proposed  2/h: allowed  2 of 2 left\n\
             path=/x\n  present   the policy does not apply to this caller\n  proposed  the policy does not apply to this caller\n"
        )
    );
    assert_eq!(rig.server.command(&["DBSIZE"]).int(), 0);
    let json = rig.with(&[&caller[..], &["--json"]].concat()).stdout;
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!((&first["caller"], &first["proposed"]["status"]["remaining"]), (&json!("user=1"), &json!(2)));
}

#[test]
fn what_cannot_be_set_is_refused_with_the_remedy() {
    let rig = Rig::start();
    let set = |policy: &str, limit: &str| {
        let ran = rig.with(&["override", "set", policy, "user=1", "--limit", limit, "--reason", "r", "--author", "a"]);
        assert_eq!(ran.code, 2, "{}", ran.stdout);
        ran.stderr
    };
    assert!(set("per-usr", "5/h").contains("did you mean `per-user`?"));
    assert!(set("per-user", "5/h sliding_log").contains("change the algorithm in the policy file instead"));
    assert!(set("per-user", "five").contains("invalid limit"));
    assert_eq!(rig.listed(), json!({"revision": 0, "overrides": []}));
    let nowhere = run(["override", "list"]);
    assert_eq!(nowhere.code, 2);
    assert!(nowhere.stderr.contains("/v1/overrides"), "{}", nowhere.stderr);
}
