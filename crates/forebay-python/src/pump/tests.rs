use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_wire::{BufferPool, Dtype, Layout};

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// A source of four records per epoch and two per batch, whose steps are 0 and 1. Fails in epoch 9. With a gate, waits for
/// permission before each batch.
struct Script {
    at: EpochPosition,
    gate: Option<(Sender<()>, Receiver<()>)>,
    seeks: Sender<EpochPosition>,
}

impl Source for Script {
    fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        if let Some((entered, leave)) = &self.gate {
            let _ = entered.send(());
            let _ = leave.recv();
        }
        if self.at.epoch == 9 {
            return Err(Failure::new(Kind::Image, "broken"));
        }
        if self.at.position == 4 {
            self.at = place(self.at.epoch + 1, 0);
            return Ok(None);
        }
        self.at.position += 2;
        Ok(Some(Batch {
            epoch: self.at.epoch,
            step: self.at.position / 2 - 1,
            position: self.at.position - 2,
            payload: BufferPool::new(0).take(0),
            dtype: Dtype::Uint8,
            mixed: None,
            columns: Vec::new(),
            encoded: None,
            shape: [0, 1, 1, 3],
            layout: Layout::Nhwc,
            labels: Vec::new(),
            samples: Vec::new(),
            flags: Vec::new(),
            digest: 0,
        }))
    }

    fn seek(&mut self, place: EpochPosition) -> Result<(), Failure> {
        let _ = self.seeks.send(place);
        self.at = place;
        Ok(())
    }
}

fn place(epoch: u64, position: u64) -> EpochPosition {
    EpochPosition { epoch, position }
}

fn pump(gate: Option<(Sender<()>, Receiver<()>)>) -> (Pump, Receiver<EpochPosition>) {
    let (seeks, seen) = channel();
    let at = place(77, 0);
    let source = Box::new(Script { at, gate, seeks });
    (Pump::new(source, batches(4)), seen)
}

/// Returns the batches of two records of an epoch of `records` records.
fn batches(records: u64) -> Batches {
    Batches::new(records, 2, 0, 1, true).unwrap()
}

fn told(pump: &Pump, generation: u64) -> String {
    match pump.take(generation, LONG) {
        Ok(Event::Batch(batch, _)) => format!("{}.{}", batch.epoch, batch.step),
        Ok(Event::EpochEnd) => "end".into(),
        Ok(Event::Failed(failure)) => format!("{failure:?}"),
        Err(none) => format!("{none:?}"),
    }
}

fn epoch(pump: &Pump) -> Vec<String> {
    let generation = pump.begin();
    let mut all = vec![told(pump, generation)];
    while all.last().is_some_and(|last| last.contains('.')) {
        all.push(told(pump, generation));
    }
    all
}

#[test]
fn epochs_follow_each_other_without_seeking() {
    let (pump, seeks) = pump(None);
    assert_eq!(epoch(&pump), ["0.0", "0.1", "end"]);
    assert_eq!(
        told(&pump, 1),
        "end",
        "for each thread that shares the loop"
    );
    assert_eq!(pump.place(), place(1, 0));
    assert_eq!(epoch(&pump), ["1.0", "1.1", "end"]);
    pump.close();
    assert!(pump.join(LONG));
    assert_eq!(epoch(&pump), ["Closed"]);
    assert_eq!(seeks.iter().collect::<Vec<_>>(), [place(0, 0)]);
}

#[test]
fn leaving_a_loop_ends_its_epoch_and_older_loops() {
    let (pump, _seeks) = pump(None);
    let first = pump.begin();
    let second = pump.begin();
    assert_eq!(told(&pump, first), "Stale");
    assert_eq!(told(&pump, second), "0.0", "nothing was taken before");
    assert_eq!(pump.place(), place(0, 2));
    assert_eq!(epoch(&pump), ["1.0", "1.1", "end"]);
    assert_eq!(told(&pump, second), "Stale");
}

#[test]
fn a_jump_continues_there_even_at_the_end_of_an_epoch() {
    let (pump, _seeks) = pump(None);
    let before = pump.begin();
    pump.jump(place(5, 2), None);
    assert_eq!(told(&pump, before), "Stale");
    assert_eq!(pump.place(), place(5, 2));
    assert_eq!(epoch(&pump), ["5.1", "end"]);
    pump.jump(place(3, 4), None);
    assert_eq!(pump.place(), place(4, 0));
    assert_eq!(epoch(&pump), ["4.0", "4.1", "end"]);
}

#[test]
fn the_position_after_the_last_batch_is_the_next_epoch() {
    let (pump, _seeks) = pump(None);
    let generation = pump.begin();
    assert_eq!(told(&pump, generation), "0.0");
    assert_eq!(told(&pump, generation), "0.1");
    let (at, digest) = pump.standing();
    assert_eq!(at, place(1, 0));
    assert_eq!(
        (digest.epoch, digest.batches, digest.complete),
        (0, 2, true)
    );
    pump.jump(at, Some(digest));
    assert_eq!(pump.standing(), (at, digest));
    assert_eq!(told(&pump, generation), "end", "the loop had everything");
    assert_eq!(epoch(&pump), ["1.0", "1.1", "end"]);
}

#[test]
fn a_state_from_the_very_end_of_an_epoch_keeps_its_digest() {
    let (pump, _seeks) = pump(None);
    let digest = EpochDigest {
        epoch: 3,
        until: 4,
        batches: 2,
        value: 7,
        ..EpochDigest::default()
    };
    pump.jump(place(3, 4), Some(digest));
    let whole = EpochDigest {
        complete: true,
        ..digest
    };
    assert_eq!(pump.standing(), (place(4, 0), whole));
}

#[test]
fn set_epoch_keeps_a_restored_position_in_that_epoch() {
    let (pump, _seeks) = pump(None);
    pump.jump(place(4, 2), None);
    pump.set_epoch(4);
    assert_eq!(epoch(&pump), ["4.1", "end"]);
    let generation = pump.begin();
    assert_eq!(told(&pump, generation), "5.0");
    pump.set_epoch(5);
    assert_eq!(epoch(&pump), ["5.0", "5.1", "end"]);
    pump.set_epoch(1);
    assert_eq!(epoch(&pump), ["1.0", "1.1", "end"]);
}

#[test]
fn an_epoch_that_is_set_during_a_loop_is_the_next_one() {
    let (pump, _seeks) = pump(None);
    let generation = pump.begin();
    assert_eq!(told(&pump, generation), "0.0");
    pump.set_epoch(5);
    assert_eq!(pump.place(), place(0, 2));
    assert_eq!(told(&pump, generation), "0.1");
    assert_eq!(pump.place(), place(5, 0));
    assert_eq!(told(&pump, generation), "end");
    assert_eq!(epoch(&pump), ["5.0", "5.1", "end"]);
    // A set epoch also applies if the loop is left early, and only once.
    let generation = pump.begin();
    assert_eq!(told(&pump, generation), "6.0");
    pump.set_epoch(3);
    assert_eq!(epoch(&pump), ["3.0", "3.1", "end"]);
    assert_eq!(epoch(&pump), ["4.0", "4.1", "end"]);
}

#[test]
fn setting_the_next_epoch_during_a_loop_needs_no_seek() {
    let (pump, seeks) = pump(None);
    let generation = pump.begin();
    assert_eq!(told(&pump, generation), "0.0");
    pump.set_epoch(1);
    assert_eq!(told(&pump, generation), "0.1");
    pump.set_epoch(1);
    assert_eq!(told(&pump, generation), "end");
    let generation = pump.begin();
    assert_eq!(told(&pump, generation), "1.0");
    pump.set_epoch(1);
    assert_eq!(told(&pump, generation), "1.1");
    let generation = pump.begin();
    assert_eq!(told(&pump, generation), "1.0", "set is set");
    pump.close();
    assert!(pump.join(LONG));
    assert_eq!(seeks.iter().collect::<Vec<_>>(), [place(0, 0), place(1, 0)]);
}

#[test]
fn set_epoch_before_the_first_batch_changes_the_loop() {
    let (pump, _seeks) = pump(None);
    let generation = pump.begin();
    pump.set_epoch(3);
    assert_eq!(told(&pump, generation), "3.0");
    pump.jump(place(4, 2), None);
    let generation = pump.begin();
    pump.set_epoch(4);
    assert_eq!(
        told(&pump, generation),
        "4.1",
        "the place of a state is kept"
    );
    assert_eq!(told(&pump, generation), "end");
}

#[test]
fn a_new_source_continues_in_place_unless_a_loop_runs() {
    let (pump, _seeks) = pump(None);
    let source = |seeks| {
        let at = place(77, 0);
        Box::new(Script {
            at,
            gate: None,
            seeks,
        })
    };
    let (seeks, seen) = channel();
    let generation = pump.begin();
    assert_eq!(told(&pump, generation), "0.0");
    assert!(!pump.supply(source(seeks.clone()), batches(4), None));
    assert_eq!(told(&pump, generation), "0.1");
    assert_eq!(told(&pump, generation), "end");
    let generation = pump.begin();
    assert!(pump.supply(source(seeks.clone()), batches(4), None));
    assert_eq!(told(&pump, generation), "1.0");
    assert_eq!(seen.recv().unwrap(), place(1, 0));
    // A shorter epoch may have no batches left at the position.
    pump.jump(place(2, 2), None);
    assert!(pump.supply(source(seeks), batches(3), None));
    assert_eq!(pump.place(), place(3, 0));
}

#[test]
fn a_failure_is_tried_again_by_the_next_take() {
    let (pump, seeks) = pump(None);
    pump.jump(place(9, 0), None);
    let generation = pump.begin();
    assert!(told(&pump, generation).contains("broken"));
    assert!(told(&pump, generation).contains("broken"));
    pump.jump(place(2, 0), None);
    assert_eq!(epoch(&pump)[0], "2.0");
    pump.close();
    assert!(pump.join(LONG));
    let places = [place(9, 0), place(9, 0), place(2, 0)];
    assert_eq!(seeks.iter().collect::<Vec<_>>(), places);
}

#[test]
fn events_of_a_replaced_order_are_discarded() {
    let (go, leave) = channel();
    let (inside, entered) = channel();
    let (pump, _seeks) = pump(Some((inside, leave)));
    let generation = pump.begin();
    assert_eq!(
        pump.take(generation, Duration::ZERO).unwrap_err(),
        NoEvent::NotYet
    );
    entered.recv().unwrap();
    pump.jump(place(3, 0), None);
    let generation = pump.begin();
    go.send(()).unwrap();
    entered.recv().unwrap();
    go.send(()).unwrap();
    assert_eq!(told(&pump, generation), "3.0");
    entered.recv().unwrap();
    pump.close();
    assert!(!pump.join(Duration::ZERO), "the source still blocks");
    drop(go);
    assert!(pump.join(LONG));
}
