//! Further limits of a policy that pay what its own cannot: the field `payers`.

use tallygate::Algorithm;
use tallygate::policy::{Payer, Policy};

use super::{is_name, limit};
use crate::fields::{Fields, Names, suggestion};

pub(crate) const PAYER: Names = &["name", "limit"];

/// The policy with its payers, if it names any.
pub(super) fn payers(fields: Fields<'_>, policy: Policy, algorithm: Option<Algorithm>) -> Policy {
    let findings = fields.findings;
    let Some(list) = fields.get("payers") else { return policy };
    let before = findings.errors();
    let mut payers = Vec::new();
    for node in fields.list("payers") {
        let Some(own) = Fields::open(node, "a payer", PAYER, findings) else { continue };
        for (key, _) in own.unknown() {
            own.refuse_with(key, instead_of);
        }
        let name = own.need("name", "credits").and_then(|_| own.text("name"));
        let name = name.filter(|(name, at)| is_name(name, at, findings));
        let of = own.need("limit", "50000/365d fixed_window");
        let (Some((name, _)), Some(of)) = (name, of) else { continue };
        match limit(of, algorithm, findings) {
            Some(Some(limit)) => payers.push(Payer::new(name, limit).expect("it is a limit already")),
            Some(None) => {
                let mut finding = findings.error(&of.at, "a payer cannot be unlimited: it would pay everything");
                finding.help("name the most that it may pay, or leave out the limits before it");
            }
            None => {}
        }
    }
    if findings.errors() > before {
        return policy;
    }
    if fields.get("holds").is_some() {
        let mut finding = findings.error(&list.at, "nothing can be held of a policy with `payers`");
        finding.help("leave out `holds`: check what is needed, and refund what was not used");
        return policy;
    }
    policy.clone().with_payers(payers).unwrap_or_else(|error| {
        findings.error(&list.at, error.to_string());
        policy
    })
}

/// What to write instead of an unknown field.
fn instead_of(field: &str) -> String {
    match field {
        "partition" | "match" | "subject" | "domain" => {
            "all payers of a policy pay for one subject, that of the policy: leave it out".to_owned()
        }
        "cap" | "amount" | "credits" => "write what it may pay as a limit: `limit: 20000/month in UTC`".to_owned(),
        "mode" | "on_error" | "excess" => "it is that of the policy: leave it out".to_owned(),
        _ => suggestion(field, PAYER, "its fields are"),
    }
}
