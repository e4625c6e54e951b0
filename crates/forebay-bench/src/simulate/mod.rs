//! Size of a cluster: how many GPUs a number of servers feeds, and the first bottleneck.
//!
//! [`ClusterPlan`] says what there is. [`ClusterPlan::limits`] is arithmetic: what each kind of machine could do if it alone counted.
//! [`run`] moves batches through queues, one by one, so that it also shows what arithmetic does not: uneven placement, slow
//! servers, servers that die, steps that wait for the last of many. It is a function of the plan and its seed; nothing of this
//! machine is in it.

mod plan;
mod run;

pub use plan::{ClusterPlan, Limit, Placement, PlanError, Resource};
pub use run::{Outcome, Use, run};

/// The effect of one more of a resource.
#[derive(Debug, Clone, serde::Serialize)]
pub struct OneMore {
    /// The resource, in words.
    pub what: String,
    /// Images a second with it.
    pub images_per_s: f64,
    /// How much more that is than without, as a part.
    pub gain: f64,
    /// Stall share of the GPU in the middle with it.
    pub stall_p50: f64,
}

/// A resource, and how the plan gets one more of it.
type Change = (&'static str, fn(&mut ClusterPlan));

/// Runs the plan again with one more of each thing. `base` is what it gave without.
///
/// # Errors
/// As [`run`].
pub fn one_more(plan: &ClusterPlan, base: &Outcome) -> Result<Vec<OneMore>, PlanError> {
    let changes: [Change; 6] = [
        ("server", |plan| plan.servers += 1),
        ("core in each server", |plan| plan.cores += 1),
        ("Gbit/s for each server", |plan| plan.server_gbit += 1.0),
        ("Gbit/s for each trainer", |plan| plan.trainer_gbit += 1.0),
        ("GB/s of storage", |plan| plan.storage_gb_s += 1.0),
        ("batch ahead for each GPU", |plan| plan.ahead += 1),
    ];
    changes
        .into_iter()
        .map(|(what, change)| {
            let mut plan = plan.clone();
            change(&mut plan);
            let outcome = run(&plan)?;
            Ok(OneMore {
                what: format!("one more {what}"),
                images_per_s: outcome.images_per_s,
                gain: outcome.images_per_s / base.images_per_s.max(f64::MIN_POSITIVE) - 1.0,
                stall_p50: outcome.stall_p50,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
