//! Seeded schedules: parts that are interrupted, repeated on other machines and written twice at once, where they meet and
//! through a store that fails.

use super::*;

/// Number of schedules; the environment variable sets more.
const SCHEDULES: &str = "FOREBAY_TEST_SCHEDULES";

/// A generator of decisions, determined by a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % sides
    }
}

#[test]
fn any_schedule_gives_the_same_dataset() {
    let schedules = std::env::var(SCHEDULES).ok();
    let schedules = schedules.and_then(|text| text.parse().ok()).unwrap_or(3);
    for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
        let rig = Rig::new(format);
        for seed in 0..schedules {
            schedule(&rig, seed);
        }
    }
}

#[test]
fn any_schedule_gives_the_same_dataset_elsewhere() {
    let schedules = match (std::env::var(SCHEDULES), forebay_rigs::is_full_test()) {
        (Ok(text), _) => text.parse().unwrap(),
        (Err(_), true) => 3,
        (Err(_), false) => return,
    };
    for service in Service::others() {
        let rig = Rig::at(service, DatasetFormat::INDEXED);
        for seed in 100..100 + schedules {
            schedule(&rig, seed);
        }
    }
}

/// Runs work on two machines at once, with staging areas of their own. In a directory, locks may refuse both; then it is run
/// again.
fn at_once<T: Send>(
    rig: &Rig,
    machines: [PackOptions; 2],
    work: &(dyn Fn(&PackOptions) -> Result<T> + Sync),
) {
    let is_directory = matches!(rig.service, Service::Directory);
    let work = |mut options: PackOptions, area: &str| {
        if !is_directory {
            options.upload.staging_dir = Some(rig.dir.path().join("areas").join(area));
        }
        work(&options).map(drop)
    };
    let again = machines[0].clone();
    let [one, other] = machines;
    let results: [Result<()>; 2] = std::thread::scope(|scope| {
        let other = scope.spawn(|| work(other, "y"));
        [work(one, "x"), other.join().unwrap()]
    });
    let is_locked = |error: &Error| error.to_string().contains("is in use by") && is_directory;
    for error in results.into_iter().filter_map(Result::err) {
        assert!(is_locked(&error), "{error}");
    }
    if is_directory {
        work(again, "").unwrap();
    }
}

/// Parts that are interrupted, repeated on other machines and written twice at once, through a store that fails.
fn schedule(rig: &Rig, seed: u64) {
    let mut dice = Dice(seed);
    let name = format!("set-{seed}");
    let proxies: Vec<FaultProxy> = (0..2)
        .map(|number| {
            let faults = match dice.roll(3) {
                0 => Plan::none(),
                _ => Plan::rough(0.1),
            };
            FaultProxy::new(rig.address(), seed * 2 + number, faults)
        })
        .collect();
    let mut machine = {
        let mut dice = Dice(seed ^ 0xabcd);
        let name = name.clone();
        let proxies = &proxies;
        move || {
            let machine = dice.roll(3);
            let url = rig.url_at(proxies[dice.roll(2) as usize].address());
            rig.machine(&name, &format!("{machine}"), url)
        }
    };
    let count = 1 + dice.roll(5) as u32;
    if dice.roll(2) == 0 {
        record_plan(&machine()).unwrap();
    }
    let mut turns: Vec<u32> = (1..=count).collect();
    for number in 0..turns.len() {
        turns.swap(number, dice.roll(count.into()) as usize);
    }
    for number in turns {
        for _ in 0..dice.roll(3) {
            interrupt_part(&machine(), number, count, 1 + dice.roll(2));
        }
        match dice.roll(3) {
            // The same part on two machines at once, which have staging areas of their own.
            0 => at_once(rig, [machine(), machine()], &|options| {
                run_part(options, number, count)
            }),
            _ => drop(run_part(&machine(), number, count).unwrap()),
        }
    }
    if dice.roll(2) == 0 {
        run_part(&machine(), 1, count).unwrap();
    }
    match dice.roll(2) {
        0 => drop(join(&machine()).unwrap()),
        _ => at_once(rig, [machine(), machine()], &join),
    }
    rig.assert_whole(&name);
}
