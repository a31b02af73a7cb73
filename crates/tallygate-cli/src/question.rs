//! Whom a command is about and under which limits: first as written, then as meant.

use std::ffi::OsString;

use anyhow::bail;
use tallygate::{Algorithm, Check, Cost, Key, Limit, LimitBuilder};

/// As written on the command line. The library reads the texts, so its messages are what the user sees.
#[derive(Debug, clap::Args)]
pub(crate) struct QuestionArgs {
    /// Whom to count: a user, an address, an API key; any bytes
    subject: OsString,
    /// How much per how long, for example `100/min`, `10/s burst 50`, `5 per 2h sliding_log`.
    /// Several limits make one decision: all are charged or none
    #[arg(short, long = "limit", value_name = "LIMIT", required = true, allow_hyphen_values = true)]
    limits: Vec<String>,
    /// The algorithm of the limits that name none [default: token_bucket]
    #[arg(short, long, value_name = "NAME")]
    algorithm: Option<String>,
    /// The name of the policy; each limit has one of its own, so one name serves as NAME, NAME-2, NAME-3, …
    #[arg(short, long = "policy", value_name = "NAME", default_value = "cli")]
    policies: Vec<String>,
}

/// The `--cost` of commands that have one.
#[derive(Debug, clap::Args)]
pub(crate) struct CostArg {
    /// How many units the call takes
    #[arg(short, long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    cost: String,
}

impl CostArg {
    /// The cost that was meant.
    pub(crate) fn read(&self) -> anyhow::Result<Cost> {
        Ok(self.cost.parse()?)
    }
}

/// As meant.
#[derive(Debug)]
pub(crate) struct Question {
    subject: OsString,
    rules: Vec<(String, Limit)>,
    cost: Cost,
}

impl QuestionArgs {
    /// What was meant, with a cost of its own.
    pub(crate) fn with_cost(self, cost: &CostArg) -> anyhow::Result<Question> {
        let question = self.into_question()?;
        Ok(Question { cost: cost.read()?, ..question })
    }

    /// What was meant.
    pub(crate) fn into_question(self) -> anyhow::Result<Question> {
        let algorithm = self.algorithm.as_deref().map(str::parse).transpose()?;
        let policies = policy_names(self.policies, self.limits.len())?;
        let limits = self.limits.iter().map(|text| limit(text, algorithm));
        let rules = policies.into_iter().zip(limits).map(|(policy, limit)| Ok((policy, limit?)));
        Ok(Question { subject: self.subject, rules: rules.collect::<anyhow::Result<_>>()?, cost: Cost::ONE })
    }
}

impl Question {
    /// One check for each limit, in the order in which they were written.
    pub(crate) fn checks(&self) -> anyhow::Result<Vec<Check<'_>>> {
        let subject = self.subject.as_encoded_bytes();
        let check = |(policy, limit)| Ok(Check::new(Key::new(policy, subject)?, limit).cost(self.cost));
        self.rules.iter().map(|(policy, limit)| (policy.as_str(), limit)).map(check).collect()
    }

    /// The policies, one for each check.
    pub(crate) fn policies(&self) -> Vec<&str> {
        self.rules.iter().map(|(policy, _)| policy.as_str()).collect()
    }

    /// The units it is about.
    pub(crate) fn cost(&self) -> u64 {
        self.cost.get()
    }
}

fn limit(text: &str, asked: Option<Algorithm>) -> anyhow::Result<Limit> {
    let builder: LimitBuilder = text.parse()?;
    match (builder.chosen_algorithm(), asked) {
        (Some(written), Some(asked)) if written != asked => {
            bail!("the limit `{text}` names {written} and --algorithm names {asked}: leave one of them out")
        }
        (None, Some(asked)) => Ok(builder.algorithm(asked).build().map_err(|error| error.in_text(text))?),
        _ => Ok(builder.build().map_err(|error| error.in_text(text))?),
    }
}

fn policy_names(given: Vec<String>, limits: usize) -> anyhow::Result<Vec<String>> {
    match given.as_slice() {
        [name] => {
            let numbered = (2..=limits).map(|number| format!("{name}-{number}"));
            Ok(std::iter::once(name.clone()).chain(numbered).collect())
        }
        names if names.len() == limits => Ok(given),
        names => bail!(
            "there are {} policy names for {limits} limits: give one for each limit, or a single one for all",
            names.len()
        ),
    }
}
