//! A report as Markdown.

use std::fmt::Write;

use super::{LabReport, table};

pub(super) fn text(report: &LabReport) -> String {
    let mut out = String::from("# I/O report\n\n");
    let _ = writeln!(out, "Command: `{}`\n", report.command);
    for experiment in &report.experiments {
        let _ = writeln!(
            out,
            "## {} {}\n\n{}\n",
            experiment.id, experiment.title, experiment.question
        );
        if !experiment.reason.is_empty() {
            let _ = writeln!(
                out,
                "*{}: {}*\n",
                experiment.class.word(),
                experiment.reason
            );
        }
        if !experiment.figures.is_empty() {
            let (head, rows) = table(experiment);
            rows_of(&mut out, &head, rows);
        }
        for (number, plot) in experiment.plots.iter().enumerate() {
            let _ = writeln!(
                out,
                "![{}]({}-{}.svg)\n",
                plot.title,
                experiment.id,
                number + 1
            );
        }
        for note in &experiment.notes {
            let _ = writeln!(out, "- {note}");
        }
        if !experiment.notes.is_empty() {
            out.push('\n');
        }
    }
    out.push_str("## Settings\n\n");
    let head = ["setting", "value"].map(str::to_owned);
    let settings = report.settings.iter();
    let rows = settings.map(|(name, value)| vec![name.clone(), value.clone()]);
    rows_of(&mut out, &head, rows.collect());
    out
}

fn rows_of(out: &mut String, head: &[String], rows: Vec<Vec<String>>) {
    let _ = writeln!(out, "| {} |", head.join(" | "));
    let _ = writeln!(out, "|{}", " --- |".repeat(head.len()));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    out.push('\n');
}
