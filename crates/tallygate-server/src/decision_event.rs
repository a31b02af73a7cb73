//! What happened to a call, for all observers: metrics, log and traces.

use std::time::Duration;

use tallygate::call::Effect;
use tallygate::decision::Source;
use tallygate::policy::{Outcome, Verdict};
use tallygate::words::words;
use tallygate::{CheckError, StoreError};

use crate::answer::{Answer, AnswerError};
use crate::question::{About, Question};

words! {
    /// How a call came in.
    pub(crate) enum Api {
        Http = "http",
        Json = "json",
        ForwardAuth = "forward_auth",
        Rls = "rls",
    }
}

words! {
    /// The outcome of a call.
    pub(crate) enum CallOutcome {
        Allowed = "allowed",
        Denied = "denied",
        Unavailable = "unavailable",
        Invalid = "invalid",
    }
}

impl Api {
    /// Envoy's protocol answers OK for an unknown domain. Elsewhere it is an error, so that a typo does not mean "no limit".
    pub(crate) fn allows_unknown_domains(self) -> bool {
        matches!(self, Self::Json | Self::Rls)
    }
}

#[derive(Debug)]
pub(crate) struct DecisionEvent<'a> {
    pub(crate) api: Api,
    pub(crate) outcome: CallOutcome,
    /// `None` if the call could not be read.
    pub(crate) asked: Option<Asked<'a>>,
}

/// A question, its answer, and the time it took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) question: &'a Question,
    pub(crate) result: &'a Result<Answer<'a>, AnswerError>,
    pub(crate) took: Duration,
}

/// The limit that decided a call.
#[derive(Debug)]
pub(crate) struct Binding<'a> {
    pub(crate) policy: &'a str,
    pub(crate) subject: &'a str,
    /// `None` if there is no decision.
    pub(crate) source: Option<Source>,
}

impl<'a> DecisionEvent<'a> {
    pub(crate) fn answered(api: Api, asked: Asked<'a>) -> Self {
        Self { api, outcome: asked.outcome(), asked: Some(asked) }
    }
}

impl<'a> Asked<'a> {
    fn outcome(&self) -> CallOutcome {
        match self.result {
            // Refunds and resets have no `on_error`: a failure of the store is reported.
            Ok(Answer::Verdict(verdict)) if self.gives_back() && verdict.store_error().is_some() => {
                CallOutcome::Unavailable
            }
            Ok(Answer::Verdict(verdict)) => match verdict.outcome() {
                Outcome::Allowed => CallOutcome::Allowed,
                Outcome::Denied => CallOutcome::Denied,
                _ => CallOutcome::Unavailable,
            },
            Ok(Answer::Decision(_, decision, _)) if !decision.allowed() => CallOutcome::Denied,
            Ok(_) => CallOutcome::Allowed,
            Err(AnswerError::Check(CheckError::Store(_))) => CallOutcome::Unavailable,
            Err(_) => CallOutcome::Invalid,
        }
    }

    /// Whether the answer is that of an earlier call with the same id.
    pub(crate) fn replayed(&self) -> bool {
        match self.result {
            Ok(Answer::Verdict(verdict)) => verdict.replayed(),
            Ok(Answer::Decision(_, decision, _)) => decision.replayed(),
            Err(_) => false,
        }
    }

    fn gives_back(&self) -> bool {
        self.question.verb.effect() == Effect::GivesBack
    }

    /// The verdict, if policies decided.
    pub(crate) fn verdict(&self) -> Option<&'a Verdict> {
        match self.result {
            Ok(Answer::Verdict(verdict)) => Some(verdict),
            _ => None,
        }
    }

    pub(crate) fn binding(&self) -> Option<Binding<'a>> {
        if let About::AdHoc(asked) = &self.question.about {
            let source = match self.result {
                Ok(Answer::Decision(_, decision, _)) => Some(decision.source()),
                _ => None,
            };
            return Some(Binding { policy: &asked.policy, subject: &asked.key, source });
        }
        let ruling = self.verdict()?.binding()?;
        Some(Binding { policy: ruling.policy().name(), subject: ruling.subject(), source: Some(ruling.source()) })
    }

    pub(crate) fn store_error(&self) -> Option<&'a StoreError> {
        match self.result {
            Ok(Answer::Verdict(verdict)) => verdict.store_error(),
            Err(AnswerError::Check(CheckError::Store(error))) => Some(error),
            _ => None,
        }
    }
}
