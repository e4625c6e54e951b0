//! A report as one self-contained HTML page.

use std::fmt::Write;

use super::{FigureClass, LabReport, table};

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; background: #fff; margin: 0 auto; max-width: 1100px; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-top: 1px solid #d5dae1; padding-top: 1rem; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #eceff3; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.published td { color: #5b6675; } tr.stand-in td { font-style: italic; }
.reason { background: #fff6e0; padding: .4rem .7rem; } code { overflow-wrap: anywhere; }
figure { margin: 0; } .plots { display: flex; flex-wrap: wrap; gap: 1rem; } .plots svg { max-width: 100%; height: auto; }
nav a { margin-right: .8rem; display: inline-block; }
";

pub(super) fn page(report: &LabReport) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>I/O report</title>\n<style>",
    );
    out.push_str(STYLE);
    out.push_str("</style></head>\n<body>\n<h1>I/O report</h1>\n");
    let _ = writeln!(
        out,
        "<p><code>{}</code></p>\n<nav>",
        escaped(&report.command)
    );
    for experiment in &report.experiments {
        let id = escaped(&experiment.id);
        let _ = writeln!(
            out,
            "<a href=\"#{id}\">{id} {}</a>",
            escaped(&experiment.title)
        );
    }
    out.push_str("</nav>\n");
    for experiment in &report.experiments {
        let (id, title) = (escaped(&experiment.id), escaped(&experiment.title));
        let question = escaped(&experiment.question);
        let _ = writeln!(out, "<h2 id=\"{id}\">{id} {title}</h2>\n<p>{question}</p>");
        if !experiment.reason.is_empty() {
            let (word, reason) = (experiment.class.word(), escaped(&experiment.reason));
            let _ = writeln!(out, "<p class=\"reason\">{word}: {reason}</p>");
        }
        out.push_str("<div class=\"plots\">\n");
        for plot in &experiment.plots {
            let _ = writeln!(out, "<figure>{}</figure>", plot.svg());
        }
        out.push_str("</div>\n");
        if !experiment.figures.is_empty() {
            let (head, rows) = table(experiment);
            let classes = experiment.figures.iter().map(|figure| match figure.class {
                FigureClass::Published => "published".to_owned(),
                FigureClass::StandIn => "stand-in".to_owned(),
                FigureClass::Measured | FigureClass::NotRun => String::new(),
            });
            rows_of(&mut out, &head, classes.zip(rows).collect());
        }
        out.push_str("<ul>\n");
        for note in &experiment.notes {
            let _ = writeln!(out, "<li>{}</li>", escaped(note));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<h2>Settings</h2>\n");
    let head = ["setting", "value"].map(str::to_owned);
    let settings = report.settings.iter();
    let rows = settings.map(|(name, value)| (String::new(), vec![name.clone(), value.clone()]));
    rows_of(&mut out, &head, rows.collect());
    out.push_str("</body>\n</html>\n");
    out
}

/// Writes a table of rows with their CSS classes.
fn rows_of(out: &mut String, head: &[String], rows: Vec<(String, Vec<String>)>) {
    out.push_str("<div class=\"table\"><table>\n<tr>");
    for name in head {
        let _ = write!(out, "<th>{}</th>", escaped(name));
    }
    out.push_str("</tr>\n");
    for (class, row) in rows {
        let _ = write!(out, "<tr class=\"{class}\">");
        for cell in row {
            let is_number = cell.replace(',', "").parse::<f64>().is_ok();
            let class = if is_number { " class=\"number\"" } else { "" };
            let _ = write!(out, "<td{class}>{}</td>", escaped(&cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

/// Escapes text for HTML, such as names of files and media.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}
