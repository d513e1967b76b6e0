//! Search for dead letters by reason, with a bound on those that it reads.

use serde::Serialize;

use super::{
    admin::{DeadLetterCursor, TaskInfo},
    queue_handle::Queue,
};
use crate::{error::Error, store::MAX_TASKS_PER_STEP};

/// Dead letters that one call reads before it returns what it has found.
const MAX_EXAMINED_TASKS: usize = 1_000;

/// A page of a search for dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadLetterSearchPage {
    /// Dead letters that match, oldest first.
    pub tasks: Vec<TaskInfo>,
    /// Number of dead letters that were read for this page, matching or not.
    pub examined: usize,
    /// Start of the next page; `None` after the last one. A page before it may have few tasks, or
    /// none.
    pub next: Option<DeadLetterCursor>,
}

impl<T> Queue<T> {
    /// Finds dead letters whose last failure has a reason that contains this text, in the same
    /// case, after the cursor or from the beginning.
    ///
    /// The store has no index of reasons. The call reads a hundred dead letters at a time, until it
    /// has found at least `wanted` or has read about 1,000. It says how many it has read, and
    /// returns a cursor to go on.
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::Error> {
    /// let queue = lockgate::Store::memory().queue::<String>("emails");
    /// let page = queue.find_dead_letters("status 503", None, 20).await?;
    /// assert_eq!((page.tasks.len(), page.examined, page.next), (0, 0, None));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store is unavailable.
    pub async fn find_dead_letters(
        &self,
        reason: &str,
        after: Option<DeadLetterCursor>,
        wanted: usize,
    ) -> Result<DeadLetterSearchPage, Error> {
        let mut page = DeadLetterSearchPage { next: after, ..DeadLetterSearchPage::default() };
        loop {
            let listed = self.dead_letters(page.next, MAX_TASKS_PER_STEP).await?;
            page.examined += listed.tasks.len();
            page.next = listed.next;
            page.tasks.extend(listed.tasks.into_iter().filter(|task| has_reason(task, reason)));
            let is_enough = page.tasks.len() >= wanted || page.examined >= MAX_EXAMINED_TASKS;
            if is_enough || page.next.is_none() {
                return Ok(page);
            }
        }
    }
}

fn has_reason(task: &TaskInfo, text: &str) -> bool {
    task.history.last().is_some_and(|failure| failure.reason.contains(text))
}
