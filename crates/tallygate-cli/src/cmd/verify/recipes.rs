//! `verify --recipes`: how the report on the wrong recipes is shown.

use std::io::{self, Write};

use tallygate_http::sanitize;
use tallygate_recipes::{Evidence, Report};

use crate::color::Color;
use crate::table::{Cell, Table, thousands};

pub(crate) fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let color = Color::for_stdout();
    writeln!(out, "{}", color.title(&format!("recipes: {} of {} caught", report.caught, report.of)))?;
    let version = sanitize::text(&report.version);
    let setting = format!("{version}; each recipe, and ours under the same calls, before the same judge");
    writeln!(out, "{}\n", color.faint(&setting))?;
    let mut rows = Table::default();
    for trial in &report.recipes {
        let verdict = match (trial.caught, trial.ours_exact) {
            (true, _) => "caught",
            (false, true) => "NOT CAUGHT",
            (false, false) => "OURS FAILED",
        };
        rows.row(vec![
            Cell::word(trial.recipe),
            Cell::word(trial.name),
            Cell::figure(worst(&trial.wrong)).good_if(trial.wrong.violations == 0),
            Cell::fault(trial.wrong.wrongly_denied as u64),
            Cell::fault(trial.wrong.orphans),
            Cell::figure(worst(&trial.ours)).good_if(trial.ours_exact),
            Cell::word(verdict).good_if(trial.caught),
        ]);
        rows.note(&format!("      {}", trial.flaw));
    }
    rows.write(out, &["", "recipe", "admitted", "denied wrongly", "orphans", "ours", "verdict"], color)?;
    writeln!(
        out,
        "admitted: units in the worst span, of the most the limit allows there. denied wrongly: calls refused\n\
         although there was room. orphans: keys that would never expire. Ours had none of these."
    )?;
    for trial in report.recipes.iter().filter(|trial| !trial.ours_exact) {
        writeln!(out, "{} {}: {}", color.bad("ours under"), trial.recipe, sanitize::text(&trial.ours.fault()))?;
    }
    Ok(())
}

fn worst(evidence: &Evidence) -> String {
    let span = evidence.admitted.zip(evidence.bound);
    span.map_or("0".to_owned(), |(admitted, bound)| format!("{} of {}", thousands(admitted), thousands(bound)))
}
