//! Operations of the [`Backend`] as script calls: typed arguments in, typed reply out.

mod backend_impl;
mod batched_charge;
mod cluster_fan_out;
#[cfg(any(test, feature = "fsck"))]
#[path = "../../fsck/redis_shard_fsck.rs"]
mod fsck;
mod job_admin;
mod job_backend_impl;
mod job_lookup;
mod job_runs;
mod job_submission;
mod job_workers;
mod locks;
mod store_probes;
mod task_poll;
mod task_queue_impl;

use self::backend_impl::{ScriptArgs, number_arg};
pub(crate) use self::batched_charge::BatchedCharge;
