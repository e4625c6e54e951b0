//! Determines the rank of a loader: from its options, or else from the process.
//!
//! The options are checked here. `forebay/_ranks.py` reads what torch, JAX and launchers report about the process, each
//! time that the rank is needed, because most of them report it late.

use pyo3::prelude::*;

use crate::failure::{Failure, Kind};

/// Rank and world size, and whether each of them is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ranks {
    pub(super) rank: u64,
    pub(super) world_size: u64,
    pub(super) rank_is_known: bool,
    pub(super) world_is_known: bool,
}

impl Ranks {
    /// For a stream that is opened before the rank is known.
    pub(super) const UNKNOWN: Ranks = Ranks {
        rank: 0,
        world_size: 1,
        rank_is_known: false,
        world_is_known: false,
    };

    /// Returns the ranks that the options set; `None` if they set none. `job` is the world size of a server's job, for
    /// which `world_size` may be left out.
    pub(super) fn given(
        rank: Option<u64>,
        world_size: Option<u64>,
        job: Option<u64>,
    ) -> Result<Option<Ranks>, Failure> {
        let missing = |name: &str, found: String| {
            let message = format!(
                "option {name} is missing: {found}; give both rank= and world_size=, or neither"
            );
            Err(Failure::new(Kind::Option, message))
        };
        match (rank, world_size) {
            (None, None) => return Ok(None),
            (Some(rank), None) if job.is_none() => {
                return missing("world_size", format!("rank is {rank}"));
            }
            (None, Some(world_size)) if world_size > 1 => {
                return missing("rank", format!("world_size is {world_size}"));
            }
            _ => {}
        }
        Ok(Some(Ranks {
            rank: rank.unwrap_or(0),
            world_size: world_size.unwrap_or(1),
            rank_is_known: true,
            world_is_known: world_size.is_some(),
        }))
    }
}

/// Asks libraries and launchers for the rank of the process. The inner error means that their answers are incomplete or
/// contradictory. `in_use` is whether the rank is needed now.
///
/// The outer error means that a variable holds an invalid rank: waiting does not help.
pub(super) fn of_process(
    py: Python<'_>,
    job: Option<u64>,
    in_use: bool,
) -> PyResult<PyResult<Ranks>> {
    let module = py.import("forebay._ranks")?;
    let claims = module.call_method1("claims", (in_use,))?;
    let chosen = module.call_method1("choose", (claims, job));
    Ok(chosen.and_then(|chosen| {
        let (rank, world_size, rank_is_known, world_is_known) = chosen.extract()?;
        Ok(Ranks {
            rank,
            world_size,
            rank_is_known,
            world_is_known,
        })
    }))
}

/// Asks libraries and launchers for the world size, which may be known before the rank.
pub(super) fn world_of_process(py: Python<'_>, job: Option<u64>) -> PyResult<u64> {
    let module = py.import("forebay._ranks")?;
    let claims = module.call_method1("claims", (true,))?;
    module.call_method1("world_size", (claims, job))?.extract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_and_world_size_are_given_together() {
        let given = |rank, world_size, job| {
            Ranks::given(rank, world_size, job)
                .map(|ranks| ranks.map(|ranks| (ranks.rank, ranks.world_size)))
                .map_err(|failure| format!("{failure:?}"))
        };
        assert_eq!(given(None, None, None), Ok(None));
        assert_eq!(given(Some(1), Some(2), None), Ok(Some((1, 2))));
        assert_eq!(given(None, Some(1), None), Ok(Some((0, 1))));
        assert_eq!(given(Some(1), None, Some(2)), Ok(Some((1, 1))));
        let error = given(Some(0), None, None).unwrap_err();
        assert!(
            error.contains("option world_size is missing: rank is 0"),
            "{error}"
        );
        let error = given(None, Some(2), Some(2)).unwrap_err();
        assert!(
            error.contains("option rank is missing: world_size is 2"),
            "{error}"
        );
    }
}
