//! `verify --recipes`: the report on the wrong recipes.

use std::io::{self, Write};

use tallygate_http::sanitize;
use tallygate_recipes::{Evidence, Report};

use crate::color::Color;
use crate::table::{Cell, Table, thousands};

pub(crate) fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let color = Color::for_stdout();
    writeln!(out, "{}", color.title(&format!("recipes: {} of {} caught", report.caught, report.of)))?;
    let version = sanitize::text(&report.version);
    let setting = format!("{version}; each recipe, and ours, under the same calls and checks");
    writeln!(out, "{}\n", color.faint(&setting))?;
    let mut rows = Table::default();
    for trial in &report.recipes {
        let verdict = match (trial.caught, trial.ours_exact) {
            (true, _) => "caught",
            (false, true) => "NOT CAUGHT",
            (false, false) => "OURS FAILED",
        };
        let name = format!("{:<2}  {}", trial.recipe, trial.name);
        rows.row(vec![Cell::word(name), Cell::word(verdict).good_if(trial.caught)]);
        rows.note(trial.flaw);
        let Evidence { wrongly_denied, orphans, .. } = &trial.wrong;
        rows.note(&format!(
            "admitted {}, denied wrongly {}, orphans {}; ours admitted {}",
            worst(&trial.wrong),
            thousands(*wrongly_denied as u64),
            thousands(*orphans),
            worst(&trial.ours)
        ));
    }
    rows.write(out, &["    recipe", "verdict"], color)?;
    writeln!(
        out,
        "admitted: units in the worst span, of the most that the limit allows there.\n\
         denied wrongly: calls denied although the limit allowed them.\n\
         orphans: keys that would never expire. Ours had none of these."
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
