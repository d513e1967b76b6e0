//! What code that runs within a request may find out about it without being handed the request.
//!
//! A middleware that rebuilds the request loses its extensions, and a function far below the handler
//! never sees it. So what a gate shows in the extensions also sits in a task-local while the inner
//! service runs. Tasks that the handler spawns are not within the request.

use std::{any::Any, fmt, future::Future, sync::Arc};

use futures_util::future::Either;

tokio::task_local! {
    static CURRENT_SCOPE: RequestScope;
}

/// What a gate wants to be known within the inner call; nothing, for most gates.
#[derive(Clone, Default)]
pub struct RequestScope(Option<Arc<dyn Any + Send + Sync>>);

impl RequestScope {
    /// This is known, in place of what a gate further out has said.
    pub(crate) fn with_value<T: Any + Send + Sync>(value: T) -> Self {
        Self(Some(Arc::new(value)))
    }

    /// What is known here, if it is of this type.
    pub(crate) fn current_value<T: Any + Clone>() -> Option<T> {
        CURRENT_SCOPE.try_with(|scope| scope.0.as_ref()?.downcast_ref().cloned()).ok().flatten()
    }

    /// What is known here, for a task that the request goes on in.
    #[must_use]
    pub fn capture() -> Self {
        CURRENT_SCOPE.try_with(Clone::clone).unwrap_or_default()
    }

    /// Does one step of the inner call, such as the calling itself or a poll of its answer's body, within this.
    pub fn run_sync<R>(&self, step: impl FnOnce() -> R) -> R {
        match self.0 {
            Some(_) => CURRENT_SCOPE.sync_scope(self.clone(), step),
            None => step(),
        }
    }

    /// Runs the inner call within this.
    pub fn run<F: Future>(self, inner: F) -> impl Future<Output = F::Output> + use<F> {
        match self.0 {
            Some(_) => Either::Left(CURRENT_SCOPE.scope(self, inner)),
            None => Either::Right(inner),
        }
    }
}

impl fmt::Debug for RequestScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestScope").field("set", &self.0.is_some()).finish()
    }
}
