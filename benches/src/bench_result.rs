//! Result type of the benchmarks. Any error ends the run with its message.

use std::error::Error;

pub(crate) type BenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;
