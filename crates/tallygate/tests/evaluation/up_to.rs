//! Calls under policies that take what is left.

use super::*;
use tallygate::call::UpTo;

impl Scene {
    fn up_to(&self, most: u64, least: u64) -> Verdict {
        let up_to = UpTo::new(Cost::new(most).unwrap()).at_least(Cost::new(least).unwrap()).unwrap();
        let asks = [Ask::check(Descriptor::new(), Cost::ONE)];
        ready(self.set.domain("d").unwrap().evaluate(&asks).up_to(up_to).decide(&self.stores, None))
    }
}

fn charged(verdict: &Verdict) -> Vec<u64> {
    verdict.rulings().iter().map(Ruling::charged).collect()
}

#[test]
fn every_policy_is_charged_what_all_have_left() {
    let shadow = policy("c", "3/h").with_mode(Mode::Shadow);
    let scene = Scene::of(vec![policy("a", "9/h"), policy("b", "5/h"), shadow]);
    let granted = scene.up_to(20, 2);
    assert_eq!((granted.granted(), charged(&granted)), (Some(5), vec![5, 5, 3]));
    let denied = scene.up_to(20, 2);
    assert_eq!((denied.outcome(), denied.granted(), charged(&denied)), (Outcome::Denied, Some(0), vec![0; 3]));
    assert_eq!(scene.remaining(), [4, 0, 0]);
    // Any other call has a cost.
    assert_eq!(scene.take(1).granted(), None);
}

#[test]
fn more_than_a_policy_can_ever_hold_is_too_costly_only_as_the_least() {
    let scene = Scene::of(vec![policy("a", "9/h")]);
    let denied = scene.up_to(20, 10);
    assert_eq!((denied.granted(), denied.rulings()[0].source()), (Some(0), Source::TooCostly));
    assert_eq!(scene.up_to(20, 9).granted(), Some(9));
}

#[test]
fn without_a_limit_all_of_it_is_granted() {
    let scene = Scene::of(vec![policy("a", "9/h").with_mode(Mode::Shadow)]);
    assert_eq!(scene.up_to(20, 2).granted(), Some(20));
    assert_eq!(scene.up_to(20, 2).granted(), Some(20));
    let up_to = UpTo::new(Cost::new(7).unwrap());
    let none = ready(Evaluation::unlimited().up_to(up_to).decide(&scene.stores, None));
    assert_eq!(none.granted(), Some(7));
}

/// Who fails open grants all of it, who fails closed nothing, and a share what is left of it.
#[test]
fn on_error_grants_too() {
    for (on_error, granted) in [(OnError::Allow, [20, 20]), (OnError::Deny, [0, 0]), (OnError::Local, [9, 0])] {
        let scene = Scene::of(vec![policy("a", "9/h").with_on_error(on_error)]);
        scene.switch_off();
        assert_eq!([(); 2].map(|()| scene.up_to(20, 2).granted().unwrap()), granted, "{on_error:?}");
    }
    let quota = |name: &str, limit: &str| policy(name, limit).with_mode(Mode::Quota).with_on_error(OnError::Allow);
    let scene = Scene::of(vec![quota("a", "9/h"), quota("b", "5/h")]);
    assert_eq!(scene.up_to(20, 1).granted(), Some(9));
    scene.switch_off();
    assert_eq!(scene.up_to(20, 1).granted(), Some(20));
}

/// Shadows that do not fit into the first call are charged what it granted.
#[test]
fn shadows_of_a_later_call_are_charged_what_was_granted() {
    let shadows = (0..40).map(|at| policy(&format!("s{at:02}"), "100/h").with_mode(Mode::Shadow));
    let scene = Scene::of(std::iter::once(policy("a", "9/h")).chain(shadows).collect());
    let granted = scene.up_to(20, 1);
    assert_eq!((granted.granted(), charged(&granted)), (Some(9), vec![9; 41]));
}
