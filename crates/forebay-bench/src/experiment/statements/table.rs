//! The statements, with their tests.

use super::super::{
    e04_ceiling, e10_checkpoints, e11_write_activity, e13_real_input, e15_stages, e19_epochs,
    e21_formats_training, e22_instrument, e27_memory, e28_copy_first,
};
use super::Limit::{Above, Below, Outside};
use super::quantities::*;
use super::{Limit, Statement, Test};
use crate::report::LabReport;

const fn tested(
    id: &'static str,
    needs: &'static [&'static str],
    text: &'static str,
    quantity: &'static str,
    values: fn(&LabReport) -> OfMedia,
    refuted_if: Limit,
) -> Statement {
    let test = Ok(Test {
        values,
        quantity,
        refuted_if,
    });
    Statement {
        id,
        text,
        needs,
        test,
    }
}

const fn untested(
    id: &'static str,
    needs: &'static [&'static str],
    text: &'static str,
    why: &'static str,
) -> Statement {
    Statement {
        id,
        text,
        needs,
        test: Err(why),
    }
}

const FORMATS: &str = "it needs formats of other tools, which characterize does not read";

pub(super) static STATEMENTS: [Statement; 35] = [
    tested(
        "H1",
        &["E6"],
        "1 to 2 threads nearly doubles ingestion (KTH)",
        "images/s of 2 threads by those of 1, single files",
        |report| by_threads(report, "E6", 1, 2),
        Below(1.8),
    ),
    tested(
        "H2",
        &["E6"],
        "an HDD gains little beyond 4 threads (KTH)",
        "images/s of 8 threads by those of 4, single files on a disk that rotates",
        |report| on(report, by_threads(report, "E6", 4, 8), is_rotational),
        Above(1.3),
    ),
    tested(
        "H3",
        &["E6"],
        "a parallel file system scales almost linearly to 8 threads (KTH)",
        "images/s of 8 threads by those of 1, single files on a network file system",
        |report| on(report, by_threads(report, "E6", 1, 8), is_shared),
        Below(6.0),
    ),
    tested(
        "H4",
        &["E4", "E6"],
        "the framework stays well below the device's ceiling (KTH)",
        "MB/s of single files, best number of threads, by those of one large file",
        |report| of_ceiling(report, e04_ceiling::READ),
        Above(0.9),
    ),
    tested(
        "H5",
        &["E7"],
        "one batch of prefetch hides I/O entirely (KTH)",
        "share of time waiting with the longest step",
        |report| waits(report, Steps::Longest),
        Above(0.05),
    ),
    tested(
        "H6",
        &["E7"],
        "one batch of prefetch hides I/O whatever storage and threads (Notes)",
        "share of time waiting",
        |report| waits(report, Steps::All),
        Above(0.05),
    ),
    tested(
        "H7",
        &["E9"],
        "without prefetch reads come in bursts and the GPU idles (KTH)",
        "duty cycle without prefetch",
        |report| named(report, "E9", "prefetch 0, duty cycle", 0.01),
        Above(0.9),
    ),
    tested(
        "H8",
        &["E8"],
        "larger batches shorten the epoch (KTH)",
        "images/s of batches of 256 by those of 16",
        |report| {
            ratios(
                report,
                "E8",
                "batches of 256, prefetch 0",
                "batches of 16, prefetch 0",
                |figure| further(figure, "images/s"),
            )
        },
        Below(1.05),
    ),
    tested(
        "H9",
        &["E10"],
        "checkpoints cost about 15 % of runtime unoptimised (Notes)",
        "share of the runtime that direct saves take",
        |report| {
            of_figures(report, "E10", |figure| {
                (figure.name == e10_checkpoints::DIRECT)
                    .then(|| scaled(further(figure, "% of runtime saving"), 0.01))
            })
        },
        Outside(0.1, 0.2),
    ),
    tested(
        "H10",
        &["E10"],
        "a burst buffer is near the time of the fast disk (KTH)",
        "s of a save that is staged and drained to another medium, by those of a direct save",
        staged_by_direct,
        Above(1.1),
    ),
    tested(
        "H11",
        &["E11"],
        "background flushing outlasts the program (KTH)",
        "s from the end of training until checkpoints that were not forced to disk are durable",
        |report| named(report, "E11", e11_write_activity::UNFORCED, 1.0),
        Below(0.01),
    ),
    tested(
        "H12",
        &["E13", "E14"],
        "real input reaches a third of synthetic untuned, 79 % tuned (Lambda)",
        "images/s with the best number of threads by those without input",
        tuned_by_synthetic,
        Above(0.95),
    ),
    tested(
        "H13",
        &["E13"],
        "input threads, not storage, limit the node at first (Lambda)",
        "images/s of cold TFRecords by those of warm ones, default threads",
        |report| {
            let (cold, warm) = (e13_real_input::COLD, e13_real_input::WARM);
            ratios(report, "E13", cold, warm, |figure| figure.runs.clone())
        },
        Below(0.9),
    ),
    tested(
        "H14",
        &["E14"],
        "CPU use grows linearly with the input threads (Lambda)",
        "cores used by threads, up to the cores of this machine",
        cores_by_threads,
        Below(0.8),
    ),
    tested(
        "H15",
        &["E15"],
        "JPEG decoding takes about half the input CPU (Lambda)",
        "share of decoding in the work of all threads",
        |report| {
            of_figures(report, "E15", |figure| {
                Some(scaled(figure.runs.clone(), 0.01))
            })
        },
        Outside(0.4, 0.6),
    ),
    tested(
        "H16",
        &["E15"],
        "contention appears at high thread counts (Lambda)",
        "share of time that decoding threads wait, largest number of threads",
        |report| {
            last_of_media(of_figures(report, "E15", |figure| {
                Some(scaled(further(figure, e15_stages::WAITING), 0.01))
            }))
        },
        Below(0.01),
    ),
    tested(
        "H17",
        &["E17"],
        "records give lower queue length and wait than files at higher MB/s (Lambda)",
        "queue length of TFRecords by that of image files",
        |report| {
            ratios(report, "E17", "TFRecords", "image files", |figure| {
                further(figure, "queue length")
            })
        },
        Above(0.5),
    ),
    tested(
        "H18",
        &["E3"],
        "packing helps where metadata is slow (Lambda)",
        "MB/s of single files by those of shards",
        |report| {
            ratios(
                report,
                "E3",
                "these images as single files",
                "shards, 1 MiB a read",
                mb_per_s,
            )
        },
        Above(0.95),
    ),
    tested(
        "H19",
        &["E18"],
        "raw trees on shared storage are impractical (Lambda)",
        "files/s that are created on local storage by those on shared storage",
        local_by_shared,
        Below(2.0),
    ),
    tested(
        "H20",
        &["E3"],
        "reads of a mix of sizes from one file are an upper bound for separate files (Lambda)",
        "reads/s of single files by those of one file",
        |report| {
            ratios(
                report,
                "E3",
                "these images as single files",
                "these sizes in one file",
                |figure| figure.runs.clone(),
            )
        },
        Above(1.0),
    ),
    tested(
        "H21",
        &["E32"],
        "8 V100 need 1 to 1.3 GB/s (Lambda)",
        "GB/s of 8 consumers that never wait, with the sizes of these images",
        demand_of_eight,
        Outside(0.95, 1.35),
    ),
    tested(
        "H22",
        &["E19"],
        "long runs become warm and faster (Lambda)",
        "images/s of the second epoch by those of the first",
        |report| {
            ratios(
                report,
                "E19",
                &e19_epochs::epoch(2),
                &e19_epochs::epoch(1),
                |figure| figure.runs.clone(),
            )
        },
        Below(1.05),
    ),
    tested(
        "H23",
        &["E24"],
        "a chunk the size of a batch gives over 200x (Teonite)",
        "images/s of whole chunks by those of single samples of them, warm, chunks of Zarr as large as a batch; else of shards, cold",
        chunks_by_samples,
        Below(20.0),
    ),
    untested(
        "H24",
        &["E20"],
        "a custom single-threaded loader equals one DataLoader worker (Teonite)",
        FORMATS,
    ),
    tested(
        "H25",
        &["E20"],
        "a good store on one worker beats 4 workers on files (Teonite)",
        "ms a batch of image files with 4 workers by those of the best format with one, cold",
        files_by_best_format,
        Below(1.0),
    ),
    tested(
        "H26",
        &["E21"],
        "stores differ by tens of times alone and by ms while training (Teonite)",
        "share of the step that training waits, of all formats with 4 workers, cold",
        |report| {
            of_figures(report, "E21", |figure| {
                let is_meant = figure.name.ends_with(", 4 workers, cold");
                is_meant.then(|| scaled(further(figure, e21_formats_training::SHARE), 0.01))
            })
        },
        Above(0.1),
    ),
    tested(
        "H27",
        &["E23"],
        "HDF5 with several workers gives wrong labels; Zarr does not (Teonite)",
        "samples that HDF5 gives wrong with 2 to 8 workers",
        wrong_with_workers,
        Below(1.0),
    ),
    tested(
        "H28",
        &["E22"],
        "a print per batch makes loading look 65x slower (Teonite)",
        "ms loading a batch with a print to a pipe by those without",
        |report| {
            ratios(
                report,
                "E22",
                e22_instrument::PIPE,
                e22_instrument::QUIET,
                |figure| figure.runs.clone(),
            )
        },
        Below(2.0),
    ),
    tested(
        "H29",
        &["E27"],
        "shared storage beats local NVMe, near DRAM (Weka)",
        "images/s of shared storage by those of tmpfs",
        |report| {
            let shares = of_figures(report, "E27", |figure| {
                let is_cold = figure.name == e27_memory::COLD;
                is_cold.then(|| scaled(further(figure, e27_memory::SHARE), 0.01))
            });
            on(report, shares, is_shared)
        },
        Below(0.8),
    ),
    tested(
        "H30",
        &["E4"],
        "NFS stops near 1 to 1.5 GB/s per connection (Weka)",
        "GB/s of one large file on NFS, one task",
        |report| on(report, named(report, "E4", "read, 1 task", 1e-3), is_nfs),
        Above(2.0),
    ),
    tested(
        "H31",
        &["E28"],
        "copying to local disk first is obsolete (Weka)",
        "epochs after which a copy pays",
        epochs_until_copy_pays,
        Below(e28_copy_first::EPOCHS),
    ),
    untested(
        "H32",
        &["E12"],
        "a forgotten flag costs 25 % (Lambda)",
        "the flag is one of TensorFlow's compiler, and needs GPUs",
    ),
    tested(
        "H33",
        &["E14"],
        "network storage becomes the limit only once input threads suffice (Lambda)",
        "images/s of shared storage by those of local storage, least number of threads",
        shared_by_local_at_first,
        Below(0.9),
    ),
    tested(
        "H34",
        &["E5", "E6", "E7"],
        "prefetching helps more than any other setting (Notes)",
        "gain of the best number of threads or of packing by that of prefetching",
        other_gains_by_prefetch,
        Above(1.0),
    ),
    tested(
        "H35",
        &["E10"],
        "reads, not writes, are the bottleneck (Notes)",
        "time that direct saves take by time waiting for batches",
        |report| {
            of_figures(report, "E10", |figure| {
                (figure.name == e10_checkpoints::DIRECT).then(|| saving_by_waiting(figure))
            })
        },
        Above(1.0),
    ),
];
