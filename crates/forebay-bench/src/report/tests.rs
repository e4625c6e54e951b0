use super::*;

fn figure(value: f64, runs: &[f64]) -> Figure {
    Figure {
        value,
        ..Figure::measured("/mnt/<a>", "read|all", "MB/s", runs.to_vec())
    }
}

#[test]
fn rows_are_called_cold_only_if_proved() {
    let proof = |cold_share| Proof {
        cold_share,
        read_ratio: Some(1.03),
        resident_before: Some(0.0),
        way: "advise",
        method: "test".to_owned(),
        caches_beyond: false,
    };
    let row = |share| {
        Figure::measured("m", "MDS, 4 workers, cold", "ms", vec![1.0]).with_proof(&proof(share))
    };
    for (share, is_cold) in [
        (Some(1.0), true),
        (Some(0.95), true),
        (Some(0.949), false),
        (Some(0.003), false),
        (None, false),
    ] {
        let row = row(share);
        let expected = match is_cold {
            true => "MDS, 4 workers, cold",
            false => "MDS, 4 workers, caches emptied",
        };
        assert_eq!(row.name, expected);
        assert!(row.is_row("MDS, 4 workers, cold"));
        assert_eq!(series_name("cold", [&row]) == "cold", is_cold);
    }
    // Whole parts of a name are replaced, not substrings.
    let mut other = Figure::measured("m", "a coldframe, warm", "ms", vec![1.0]);
    other.name_by_share();
    assert_eq!(other.name, "a coldframe, warm");
}

fn report(runs: &[f64]) -> LabReport {
    let mut report = LabReport::new(
        "forebay bench characterize /mnt/<a>".to_owned(),
        [("kernel".to_owned(), "6.18".to_owned())].into(),
    );
    let mut stand_in = figure(5.0, &[5.0]);
    stand_in.name = "slowed down".to_owned();
    stand_in.class = FigureClass::StandIn;
    stand_in.cold_share = Some(0.5);
    report.experiments.push(ExperimentReport {
        id: "E4".to_owned(),
        title: "Ceiling".to_owned(),
        question: "How fast?".to_owned(),
        class: FigureClass::Measured,
        reason: String::new(),
        figures: vec![
            Figure::measured("/mnt/<a>", "read|all", "MB/s", runs.to_vec()),
            stand_in,
        ],
        plots: vec![Plot {
            title: "a & b".to_owned(),
            x: "threads".to_owned(),
            scale: Scale::Logarithmic,
            y: "MB/s".to_owned(),
            series: vec![Series {
                name: "a<b".to_owned(),
                class: FigureClass::StandIn,
                points: vec![(1.0, 10.0), (2.0, 19.0), (8.0, 30.0)],
            }],
        }],
        notes: vec!["a <note>".to_owned()],
        seconds: 1.5,
    });
    report
}

#[test]
fn written_reports_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let written = report(&[1.0, 2.0, 4.0]);
    written.write(dir.path()).unwrap();
    assert_eq!(LabReport::read(dir.path()).unwrap(), written);
    assert_eq!(
        LabReport::read(&dir.path().join(REPORT_FILE)).unwrap(),
        written
    );
    let mut names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["E4-1.svg", "report.html", "report.json", "report.md"]
    );
}

#[test]
fn a_report_of_another_layout_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(REPORT_FILE);
    let text = serde_json::to_string(&report(&[1.0])).unwrap();
    fs::write(&file, text.replace("\"layout\":1", "\"layout\":9")).unwrap();
    let error = LabReport::read(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("layout 9") && error.contains("report.json"),
        "{error}"
    );
}

#[test]
fn names_are_escaped_in_pages_and_tables() {
    let report = report(&[1.0, 2.0, 4.0]);
    let page = html::page(&report);
    assert!(
        page.contains("/mnt/&lt;a&gt;") && !page.contains("/mnt/<a>"),
        "{page}"
    );
    assert!(page.contains("a &lt;note&gt;"));
    assert!(page.contains("a&lt;b (stand-in)"));
    let text = report.markdown();
    assert!(text.contains("read\\|all"), "{text}");
    // Medium, class, proof of the cold share, figure, median, lowest, highest.
    assert!(
        text.contains("| /mnt/<a> | measured |  | read\\|all | 2.00 | 1.00 | 4.00 | MB/s |"),
        "{text}"
    );
    assert!(text.contains("| stand-in | 0.500 |"), "{text}");
}

#[test]
fn plots_draw_each_class_in_its_own_way() {
    let mut plot = report(&[1.0]).experiments[0].plots[0].clone();
    let dashes = |svg: &str| svg.matches("<polyline").count();
    let dashed = dashes(&plot.svg());
    plot.series[0].class = FigureClass::Measured;
    let full = plot.svg();
    assert!(dashed > dashes(&full), "a stand-in has a dashed line");
    assert!(full.contains("a &amp; b"), "{full}");
    plot.series[0].class = FigureClass::Published;
    assert!(plot.svg().matches("fill=\"none\"").count() > full.matches("fill=\"none\"").count());
    plot.scale = Scale::Names(vec!["one".to_owned(), "two".to_owned()]);
    plot.series[0].points = vec![(0.0, 3.0), (1.0, 4.0)];
    let bars = plot.svg();
    assert!(bars.contains("one") && bars.contains("two"), "{bars}");
    assert!(bars.contains("3.00") && bars.contains("4.00"), "{bars}");
    // Long names do not overlap: each has its own line, and is truncated.
    let long = |what: &str| format!("{what} {}", "and so on ".repeat(20));
    plot.scale = Scale::Names(vec![long("one"), long("two")]);
    let bars = plot.svg();
    let heights: Vec<&str> = ["one and", "two and"]
        .iter()
        .map(|name| {
            let element = bars[..bars.find(name).expect("a name")]
                .rsplit("<text")
                .next();
            let height = element.and_then(|text| text.split("y=\"").nth(1));
            height
                .and_then(|text| text.split('"').next())
                .expect("a height")
        })
        .collect();
    assert_ne!(heights[0], heights[1], "{bars}");
    assert!(
        bars.contains('\u{2026}') && !bars.contains(&long("one")),
        "{bars}"
    );
    plot.series[0].points = vec![(0.0, f64::NAN)];
    assert!(plot.svg().contains("nothing to draw"));
}

#[test]
fn numbers_have_digits_by_their_size() {
    for (value, text) in [
        (0.0, "0"),
        (0.12345, "0.123"),
        (1.5, "1.50"),
        (42.27, "42.3"),
        (123.4, "123"),
        (1_234_567.8, "1,234,568"),
        (-1234.0, "-1,234"),
    ] {
        assert_eq!(number(value), text);
    }
}
