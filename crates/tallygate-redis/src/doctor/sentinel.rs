//! The sentinels of a master: whether enough of them answer to fail over, and how soon they would.

use super::facts::{Fields, Known};
use super::finding::{DoctorCheck, Finding};
use super::side::Side;
use crate::url::{Address, Login};

const CHECK: DoctorCheck = DoctorCheck::Sentinel;
/// Milliseconds.
const LONG_DOWN_AFTER: u64 = 15_000;

/// What one sentinel says.
#[derive(Debug)]
pub(super) struct View {
    pub(super) address: String,
    pub(super) master: Known<Fields>,
    /// Whether it knows enough others, in its words if not.
    pub(super) quorum: Result<(), String>,
}

pub(super) async fn look(address: &Address, name: &str, login: &Login, tls: bool) -> View {
    let side = Side::open(address, login, tls).await;
    let address = address.to_string();
    let mut side = match side {
        Ok(side) => side,
        Err(missing) => return View { address, master: Err(missing), quorum: Ok(()) },
    };
    let master = side.ask(&["SENTINEL", "MASTER", name]).await.map(|reply| Fields::of_pairs(&reply));
    let quorum = match side.ask(&["SENTINEL", "CKQUORUM", name]).await {
        Err(missing) if missing.why.contains("NOQUORUM") => Err(missing.why),
        // A user who may not ask is no sign of a lost quorum.
        _ => Ok(()),
    };
    View { address, master, quorum }
}

pub(super) fn judge(views: &[View]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for View { address, master, quorum } in views {
        match master {
            Err(missing) if missing.unreachable => findings.push(
                Finding::warning(CHECK, format!("the sentinel {address} does not answer: {}", missing.why))
                    .means(7, "fewer sentinels are left to agree on a failover")
                    .fix("start it again, or take it out of the store URL"),
            ),
            Err(missing) => findings.push(
                Finding::unknown(CHECK, &missing.why)
                    .fix("to have it checked, give the user of the sentinels +sentinel|master +sentinel|ckquorum"),
            ),
            Ok(_) => {}
        }
        if let Err(why) = quorum {
            findings.push(
                Finding::problem(CHECK, why.as_str())
                    .means(6, "nobody can order a failover: if the master is lost, the store stays down")
                    .fix("start the missing sentinels, or lower the quorum: SENTINEL SET <master> quorum <n>"),
            );
        }
    }
    let known = || views.iter().filter_map(|view| view.master.as_ref().ok());
    let Some(fields) = known().next() else { return findings };
    let most = known().filter_map(|fields| fields.number("num-other-sentinels")).max();
    let (Some(others), Some(quorum)) = (most, fields.number("quorum")) else {
        findings.push(Finding::unknown(CHECK, "the sentinels do not say how many they are"));
        return findings;
    };
    let sentinels = others.saturating_add(1);
    if sentinels < 3 || quorum < 2 {
        findings.push(
            Finding::warning(CHECK, format!("{sentinels} sentinels with quorum {quorum}"))
                .means(
                    7,
                    "the loss of one machine prevents a failover, or one that is cut off promotes a second master",
                )
                .fix("run three or more sentinels on separate machines, with quorum 2 or more"),
        );
    }
    let down_after = known().filter_map(|fields| fields.number("down-after-milliseconds")).max();
    if let Some(down_after) = down_after.filter(|down_after| *down_after > LONG_DOWN_AFTER) {
        findings.push(
            Finding::warning(CHECK, format!("down-after-milliseconds {down_after}"))
                .means(6, "when the master is lost, calls are answered by on_error for at least that long")
                .fix("SENTINEL SET <master> down-after-milliseconds 5000, on every sentinel"),
        );
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("{sentinels} sentinels with quorum {quorum}")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::facts::Missing;
    use super::super::finding::Severity::{self, Ok as Fine, Problem, Unknown, Warning};
    use super::*;

    fn view(fields: &str) -> View {
        View { address: "s:1".into(), master: Ok(Fields::of_text(fields)), quorum: Ok(()) }
    }

    #[test]
    fn sentinels_are_judged_by_their_number_and_their_patience() {
        let severities =
            |views: &[View]| judge(views).iter().map(|finding| finding.severity).collect::<Vec<Severity>>();
        let sound = "num-other-sentinels:2\nquorum:2\ndown-after-milliseconds:5000";
        assert_eq!(severities(&[view(sound)]), [Fine]);
        assert_eq!(severities(&[view("num-other-sentinels:1\nquorum:2")]), [Warning]);
        assert_eq!(severities(&[view("num-other-sentinels:2\nquorum:1")]), [Warning]);
        assert_eq!(severities(&[view("num-other-sentinels:2\nquorum:2\ndown-after-milliseconds:30000")]), [Warning]);
        assert_eq!(severities(&[view("num-other-sentinels:18446744073709551615\nquorum:2")]), [Fine]);
        assert_eq!(severities(&[view("garbage")]), [Unknown]);
        let lost = Missing { why: "no".into(), remedy: String::new(), unreachable: true };
        let lost = View { master: Err(lost), ..view("") };
        assert_eq!(severities(&[lost, view(sound)]), [Warning]);
        let split = View { quorum: Err("NOQUORUM".into()), ..view(sound) };
        assert_eq!(severities(&[split]), [Problem]);
    }
}
