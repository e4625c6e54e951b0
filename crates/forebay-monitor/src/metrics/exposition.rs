//! The Prometheus text format, version 0.0.4.
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>

use std::fmt::{Display, Write};

/// Labels of a line, as names and values.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// The text: metric families one after the other, each with its lines.
pub(super) struct Page(pub(super) String);

/// Writes the lines of one metric family.
pub(super) struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
}

impl Page {
    pub(super) fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    pub(super) fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "counter", help)
    }

    pub(super) fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { page: self, name }
    }
}

impl Family<'_> {
    /// Writes a line without labels.
    pub(super) fn is(mut self, value: impl Display) {
        self.line(&[], value);
    }

    pub(super) fn line(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.suffixed("", labels, value);
    }

    /// Writes a line with a suffix to the metric name: `_sum`, `_count` or `_bucket`.
    pub(super) fn suffixed(&mut self, suffix: &str, labels: &Labels<'_>, value: impl Display) {
        let page = &mut self.page.0;
        page.push_str(self.name);
        page.push_str(suffix);
        for (i, (label, text)) in labels.iter().enumerate() {
            let gap = if i == 0 { '{' } else { ',' };
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(page, "{gap}{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            page.push('}');
        }
        let _ = writeln!(page, " {value}");
    }

    /// Writes a histogram. `counts` has one element more than `bounds`, for values above the last
    /// bound.
    pub(super) fn histogram(
        &mut self,
        labels: &Labels<'_>,
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) {
        let mut all = 0;
        let ends = bounds.iter().map(|bound| bound.to_string());
        for (end, count) in ends.chain(["+Inf".to_owned()]).zip(counts) {
            all += count;
            let labels = [labels, &[("le", end.as_str())]].concat();
            self.suffixed("_bucket", &labels, all);
        }
        self.suffixed("_sum", labels, sum);
        self.suffixed("_count", labels, all);
    }
}
