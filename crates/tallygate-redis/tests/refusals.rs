//! Errors are reported at once, with the remedy, and nothing is changed.

mod acl;
mod address;
mod layout;
mod state;

use std::time::Duration;

use tallygate::store::StoreErrorKind;
use tallygate::{CheckError, StoreError};
use tallygate_redis::{ConnectError, RedisStore};

/// The error of connecting to this address.
async fn refusal(url: &str) -> ConnectError {
    let builder = RedisStore::builder(url).deadline(Duration::from_secs(10)).connect_timeout(Duration::from_secs(10));
    match builder.connect().await {
        Ok(_) => panic!("{url} was accepted"),
        Err(error) => error,
    }
}

/// Refused until someone changes something, and the message says what.
#[track_caller]
fn is_refused(error: &ConnectError, remedy: &str) {
    let ConnectError::Store(error) = error else { panic!("{error:?}") };
    store_refused(error, remedy);
}

#[track_caller]
fn check_refused(error: &CheckError, remedy: &str) {
    let CheckError::Store(error) = error else { panic!("{error:?}") };
    store_refused(error, remedy);
}

#[track_caller]
fn store_refused(error: &StoreError, named: &str) {
    assert_eq!(error.kind(), StoreErrorKind::Refused, "not a refusal: {error:?}");
    assert!(error.to_string().contains(named), "`{named}` is not named by: {error}");
}

/// Temporary, or an operator can fix it; the message says what is wrong.
#[track_caller]
fn is_unavailable(error: &ConnectError, matter: &str) {
    let ConnectError::Store(error) = error else { panic!("{error:?}") };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert!(error.reason().contains(matter), "`{matter}` is not named by: {error}");
}
