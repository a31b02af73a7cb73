//! The policy files in the README, the guides and `examples/recipes` load, and the recipes do what they say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use http::Request;
use tallygate::policy::Descriptor;
use tallygate_config::Config;
use tallygate_tower::{Cost, RateLimit};

use crate::examples::process::program;
use crate::limits::rig::send;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_policy_file_in_the_guides_loads() {
    let guides = fs::read_dir(root().join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
    let mut loaded = 0;
    for path in guides.chain([root().join("README.md")]) {
        let text = fs::read_to_string(&path).unwrap();
        for block in text.split("```yaml\n").skip(1) {
            let block = block.split("```").next().unwrap();
            Config::from_texts(&[(path.display().to_string(), block)]).unwrap_or_else(|findings| panic!("{findings}"));
            loaded += 1;
        }
    }
    assert!(loaded >= 4, "only {loaded} policy files were found");
}

/// A policy file as the middleware uses it. Each request carries its descriptor, such as `user=42,plan=pro`, and its cost.
struct Recipe(RateLimit);

impl Recipe {
    fn load(name: &str, domain: &str) -> Self {
        let config = Config::load(&root().join("examples/recipes").join(name));
        let config = config.unwrap_or_else(|findings| panic!("{findings}"));
        let layer = RateLimit::new().policies(Arc::new(config.policies), domain, |parts| {
            let entries = parts.headers["descriptor"].to_str().unwrap();
            let entries = entries.split(',').map(|entry| entry.split_once('=').unwrap());
            entries.fold(Descriptor::new(), |descriptor, (key, value)| descriptor.with(key, value))
        });
        Self(layer.cost(|parts| Cost::new(parts.headers["cost"].to_str().unwrap().parse().unwrap()).unwrap()))
    }

    async fn allows(&self, descriptor: &str, cost: u64) -> bool {
        let request = Request::builder().header("descriptor", descriptor).header("cost", cost).body(()).unwrap();
        match send(&self.0, request).await.status.as_u16() {
            200 => true,
            429 => false,
            status => panic!("{status}"),
        }
    }

    /// How many of `most` calls pass, one after the other.
    async fn passing(&self, descriptor: &str, most: usize) -> usize {
        let mut passed = 0;
        for _ in 0..most {
            passed += usize::from(self.allows(descriptor, 1).await);
        }
        passed
    }
}

/// A call more may pass where a bucket refills meanwhile.
fn about(passed: usize, limit: usize) {
    assert!((limit..=limit + limit / 10 + 1).contains(&passed), "{passed} of {limit}");
}

#[tokio::test]
async fn per_user_plans() {
    let recipe = Recipe::load("per-user-plans.yaml", "api");
    about(recipe.passing("user=1,plan=free", 100).await, 60);
    about(recipe.passing("user=2,plan=pro", 800).await, 600);
    assert_eq!(recipe.passing("user=3,plan=internal", 1000).await, 1000);
    about(recipe.passing("remote_address=192.0.2.1", 100).await, 20);
}

#[tokio::test]
async fn login_brute_force() {
    let recipe = Recipe::load("login-brute-force.yaml", "login");
    assert_eq!(recipe.passing("account=alice,remote_address=192.0.2.1", 10).await, 5);
    // What was denied by the account was not charged to the address.
    for account in ["b", "c", "d"] {
        assert_eq!(recipe.passing(&format!("account={account},remote_address=192.0.2.1"), 10).await, 5);
    }
    assert_eq!(recipe.passing("account=e,remote_address=192.0.2.1", 10).await, 0);
    // And the blocked address did not use up attempts of the account.
    assert_eq!(recipe.passing("account=e,remote_address=192.0.2.2", 10).await, 5);
}

#[tokio::test]
async fn llm_tokens() {
    let recipe = Recipe::load("llm-tokens.yaml", "llm");
    assert!(recipe.allows("api_key=k,model=m", 8000).await);
    // More than is left: denied, and what was left is taken.
    assert!(!recipe.allows("api_key=k,model=m", 8000).await);
    assert!(!recipe.allows("api_key=k,model=m", 1000).await);
    assert!(recipe.allows("api_key=other,model=m", 8000).await);
}

#[tokio::test]
async fn global_cap() {
    let recipe = Recipe::load("global-cap.yaml", "api");
    let mut passed = 0;
    for user in 0..30 {
        passed += recipe.passing(&format!("user={user}"), 10).await;
    }
    // A hundred at once, and what was regained while this ran.
    assert!((100..300).contains(&passed), "{passed}");
}

fn run(name: &str) -> String {
    let output = Command::new(program(name)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_recipes_in_rust_print_what_they_show() {
    assert_eq!(run("per_route_cost"), "/export: 200\n/items: 200\n/export: 429\n/items: 200\n");
    assert_eq!(run("bots_by_prefix"), "192.0.2.1: 200\n192.0.2.2: 200\n192.0.2.3: 429\n198.51.100.1: 200\n");
    assert_eq!(run("outbound_quota").lines().count(), 6);
}
