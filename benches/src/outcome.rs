//! What can go wrong: anything, and it ends the run with one sentence.

use std::error::Error;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
