//! The list of open holds of the embedded store.

use tallygate::hold::{HoldQuery, OpenHold};

use super::*;

/// All pages of a list, and how many there were.
fn pages(store: &MemoryStore, mut query: HoldQuery) -> (Vec<OpenHold>, usize) {
    let (mut all, mut pages) = (Vec::new(), 0);
    loop {
        let page = store.open_holds(&query);
        assert!(page.holds.len() <= query.most());
        all.extend(page.holds);
        pages += 1;
        if page.next.is_none() {
            return (all, pages);
        }
        query = query.after(page.next);
    }
}

/// Of twelve thousand holds, many of one instant, none is missing and none is there twice, however long the pages are.
#[tokio::test]
async fn pages_are_in_order_and_complete() {
    let (limiter, clock) = limiter();
    let limit: Limit = "100000/h".parse().unwrap();
    for number in 0..12_000_u64 {
        clock.set(Timestamp::from_micros(START.as_micros() + number / 7 * 10));
        let subject = format!("s{}", number % 900);
        let check = Check::new(key(&subject), &limit);
        let hold = reserve(&limiter, check, 1 + number % 9, if number.is_multiple_of(5) { 1 } else { 60 }).await;
        if number.is_multiple_of(3) {
            limiter.settle(&hold, Units::Same(1)).await.unwrap();
        }
    }
    clock.set(Timestamp::from_micros(START.as_micros() + 2_000_000));
    let open = |number: &u64| !number.is_multiple_of(3) && !number.is_multiple_of(5);
    let expected: Vec<(u64, u64)> =
        (0..12_000).filter(open).map(|number| (START.as_micros() + number / 7 * 10, 1 + number % 9)).collect();
    for most in [1, 13, 1000] {
        let (listed, count) = pages(limiter.store(), HoldQuery::new().at_most(most));
        let seen = listed.iter().map(|hold| hold.reserved_at.as_micros());
        assert!(seen.clone().eq(expected.iter().map(|(at, _)| *at)), "the oldest first, {most} in a page");
        let sum: u64 = listed.iter().map(OpenHold::units).sum();
        assert_eq!(sum, expected.iter().map(|(_, units)| units).sum::<u64>());
        assert!(count <= 2 + expected.len() / most + 12_000 / 5_000, "{count} pages of {most}");
    }
    let one = HoldQuery::new().of_policy("tokens").unwrap().of_subject("s7").unwrap();
    let (of_one, _) = pages(limiter.store(), one);
    assert!(of_one.iter().all(|hold| hold.parts[0].subject == "s7"));
    assert_eq!(of_one.len(), (0..12_000).filter(|number| open(number) && number % 900 == 7).count());
    let old = Duration::from_micros(2_000_000 - 1000 * 10);
    let (older, _) = pages(limiter.store(), HoldQuery::new().older_than(old));
    assert_eq!(older.len(), expected.iter().filter(|(at, _)| at - START.as_micros() <= 10_000).count());
}

/// A list is for operators: with what is in it nobody can settle a hold.
#[tokio::test]
async fn a_list_has_neither_tokens_nor_ids() {
    let (limiter, _) = limiter();
    let limit: Limit = "10/h".parse().unwrap();
    let hold = reserve(&limiter, Check::new(key("alice"), &limit), 4, 60).await;
    let page = limiter.store().open_holds(&HoldQuery::new());
    let printed = format!("{page:?}");
    assert!(printed.contains("alice") && !printed.contains(&hold.id().to_hex()), "{printed}");
    assert_eq!((page.holds[0].units(), page.holds[0].expires_after()), (4, Duration::from_secs(60)));
    limiter.settle_partial(&hold, Units::Same(3)).await.unwrap();
    assert_eq!(limiter.store().open_holds(&HoldQuery::new()).holds[0].units(), 1);
    limiter.cancel(&hold).await.unwrap();
    assert!(limiter.store().open_holds(&HoldQuery::new()).holds.is_empty());
}
