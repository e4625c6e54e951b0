use super::super::remedy::WORTH;
use super::*;
use crate::report::FigureClass;

fn options() -> ExplainOptions {
    ExplainOptions {
        split: None,
        batch_size: 4,
        threads: 1,
        consumer: Some(Consumer::with_step(Duration::from_millis(1), 4)),
        run_time: Duration::from_millis(60),
        runs: 1,
        cold: Cold::Off,
        read: ReadOptions::default(),
        command: "forebay bench explain".to_owned(),
    }
}

#[test]
fn rows_of_a_local_dataset_report_their_caches() {
    let dir = tempfile::tempdir().unwrap();
    let images = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let packed = dir.path().join("packed");
    let of = Location::from(images.as_path());
    let place = Location::from(packed.as_path());
    let pack = forebay_pack::PackOptions::new(of, place.clone());
    forebay_pack::pack(&pack, &(), &forebay_pack::Cancel::new()).unwrap();
    let mut options = options();
    options.consumer = None;
    let found = explain(&place, &options).unwrap();
    let rows = &found.stages.rows;
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    let expected = [
        ALONE,
        MEMORY,
        "reads of the loader, local storage",
        CHECKED,
        DECODED,
        TRANSFORMED,
        HANDED,
    ];
    assert_eq!(names, expected);
    let proofs: Vec<bool> = rows.iter().map(|row| row.cache.is_some()).collect();
    assert_eq!(proofs, [false, false, true, true, true, true, true]);
    let plot = &found.report.experiments[0].plots[0];
    assert_eq!(plot.series[0].points.len(), expected.len());
}

#[test]
fn the_stages_of_a_slow_storage_are_priced() {
    let place =
        Location::parse("synthetic://imagenet?records=10&pictures=2&bandwidth=5MB").unwrap();
    let found = explain(&place, &options()).unwrap();
    let names: Vec<&str> = found
        .stages
        .rows
        .iter()
        .map(|row| row.name.as_str())
        .collect();
    assert_eq!(
        names[..7],
        [
            ALONE,
            MEMORY,
            "reads of the loader, generated storage",
            CHECKED,
            DECODED,
            TRANSFORMED,
            HANDED
        ]
    );
    assert!(names[7].starts_with(CONSUMED) && names.len() == 8);
    assert!(found.stages.rows.iter().all(|row| row.median > 0.0));
    assert!(
        found.bottleneck.contains("-bound: "),
        "{}",
        found.bottleneck
    );
    let experiment = &found.report.experiments[0];
    assert_eq!(experiment.class, FigureClass::StandIn);
    assert_eq!(experiment.figures.len(), names.len());
    assert!(experiment.plots[0].svg().contains("images/s"));
    // Which remedies are listed depends on the machine. Each listed one gains enough.
    for price in &found.prices {
        assert!(price.gain.gain >= WORTH, "{price:?}");
        assert!(price.sentence().starts_with(&price.remedy), "{price:?}");
    }
}
