//! Three processes that share a pack or a conversion into a store, one of which is killed and started again.

use super::*;

/// Each machine has a staging area and a working directory of its own.
fn machines(place: &Place, reach: &Reach, args: &[String]) {
    let machine = |number: u32| {
        let area = place.path(&format!("machine-{number}"));
        std::fs::create_dir_all(&area).unwrap();
        let mut command = reach.command(args.iter().map(String::as_str));
        command.args(["--part", &format!("{number}/3"), "--staging"]);
        command.arg(&area).current_dir(&area);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let head = |step: &str| {
        let args = args.iter().map(String::as_str).chain([step]);
        reach.run(staged(
            &args.map(str::to_owned).collect::<Vec<_>>(),
            &place.path("head"),
        ))
    };
    head("--plan").done();
    let mut killed = machine(2);
    let others = [machine(1), machine(3)];
    // It has opened its staging area, so that it is about to write shards.
    let area = place.path("machine-2");
    let is_idle = || std::fs::read_dir(&area).unwrap().next().is_none();
    while is_idle() && killed.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    for other in others {
        let ran = other.wait_with_output().unwrap();
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
    let ran = machine(2).wait_with_output().unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    head("--finish").done();
}

/// The objects of a pack and of a conversion by three machines are those of one machine.
fn share(reach: &Reach, to: &str) {
    let place = Place::new();
    let packed = format!("{to}/packed");
    machines(&place, reach, &pack_to(&packed));
    place.assert_is_at("whole", reach, &packed);
    let whole = place.path("whole");
    let how = ["--format", "indexed", "--shards", "3"].map(str::to_owned);
    let convert = |to: &str| {
        let args = ["convert".to_owned(), text(&whole).to_owned(), to.to_owned()];
        args.into_iter().chain(how.clone()).collect::<Vec<String>>()
    };
    run(convert(text(&place.path("indexed")))
        .iter()
        .map(String::as_str))
    .done();
    let converted = format!("{to}/converted");
    machines(&place, reach, &convert(&converted));
    place.assert_is_at("indexed", reach, &converted);
    for machine in 1..=3 {
        assert_nothing_is_staged(&place.path(&format!("machine-{machine}")));
    }
}

#[test]
fn machines_share_work_into_a_store_that_checks_signatures() {
    let server = S3Server::start();
    share(&Reach::s3(server.url(), server.settings()), "s3://bucket");
    assert_eq!(server.open_parts(), 0);
}

#[test]
fn machines_share_work_into_moto() {
    let Some(server) = Moto::start() else { return };
    share(&Reach::s3(server.url(), server.settings()), "s3://bucket");
}

#[test]
fn machines_share_work_into_azurite() {
    let Some(server) = Azurite::start() else {
        return;
    };
    let reach = Reach::default().and("AZURE_STORAGE_ENDPOINT", server.url(), server.settings());
    share(&reach, "az://bucket");
}
