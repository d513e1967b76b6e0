//! Settings of `DeferLayer` that merge waiting requests: coalesce and supersede.

use super::defer_layer::DeferLayer;
use crate::{gate::RequestKind, store::MergeMode};

impl<R: RequestKind> DeferLayer<R> {
    /// Merges requests into the first: while a request waits, another one with the same owner,
    /// method and target is not stored, and its response refers to the waiting one. Its body may
    /// differ.
    ///
    /// - Only the [webhook](Self::webhook) of the first request is delivered, if it has one.
    /// - It applies to PUT and DELETE; requests with other methods are all stored.
    /// - A request that has waited for a day longer than its [`delay`](Self::delay), because no
    ///   worker is alive, no longer absorbs later ones.
    #[must_use]
    pub fn coalesce(self) -> Self {
        self.with_settings(|settings| settings.run.merge_mode = Some(MergeMode::Coalesce))
    }

    /// Merges requests into the last: while a request waits, another one with the same owner,
    /// method and target supersedes it. The first is `cancelled`, and the new one joins the end of
    /// the queue. It applies to PUT and DELETE, and for as long as [`coalesce`](Self::coalesce).
    ///
    /// A request that is superseded again and again does not run until that stops: for example a
    /// document saved every second, behind a queue that takes two, or with a [`delay`](Self::delay)
    /// of two. The new request cannot take the position of the first one, which precedes requests
    /// that the new one may not overtake. If runs in between are needed, use `coalesce`, which
    /// keeps the position of the first request; with a `delay` it runs once in that time.
    #[must_use]
    pub fn supersede(self) -> Self {
        self.with_settings(|settings| settings.run.merge_mode = Some(MergeMode::Supersede))
    }
}
