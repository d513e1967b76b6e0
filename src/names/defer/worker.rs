//! `DeferWorker`: what runs it.

/// `DeferWorker`, for `__defer_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __defer_worker_names {
    () => {
        /// Runs deferred requests. Several processes may each have one; they share the work.
        #[derive(Debug)]
        #[must_use = "a worker does nothing until `run` is awaited or spawned"]
        pub struct DeferWorker {
            pub(crate) inner: ::lockgate::defer::DeferWorker,
        }

        impl DeferWorker {
            /// Most requests that run at once. Default 16; those of one resource never do.
            pub fn concurrency(self, most: usize) -> Self {
                Self { inner: self.inner.concurrency(most) }
            }

            /// How long runs may go on after the signal to stop. Default 10 s. What still runs then
            /// is abandoned: PUT and DELETE go back in line, others among the dead letters.
            pub fn drain(self, deadline: ::std::time::Duration) -> Self {
                Self { inner: self.inner.drain(deadline) }
            }

            /// How long a run outlives its process. Default 10 s; renewed at a third.
            pub fn lease(self, lease: ::std::time::Duration) -> Self {
                Self { inner: self.inner.lease(lease) }
            }

            /// Longest run. Default 5 minutes.
            pub fn max_run(self, max: ::std::time::Duration) -> Self {
                Self { inner: self.inner.max_run(max) }
            }

            /// How long finished requests and their responses are kept. Default a day.
            pub fn keep_done(self, retention: ::std::time::Duration) -> Self {
                Self { inner: self.inner.keep_done(retention) }
            }

            /// How long dead letters are kept. Default a week.
            pub fn keep_dead(self, retention: ::std::time::Duration) -> Self {
                Self { inner: self.inner.keep_dead(retention) }
            }

            /// Works until `shutdown` resolves, then drains. Dropping the future instead aborts what
            /// runs, as a crash would.
            pub async fn run(self, shutdown: impl ::std::future::Future<Output = ()>) {
                self.inner.run(shutdown).await;
            }
        }

        impl From<DeferWorker> for ::lockgate::defer::DeferWorker {
            /// Without the framework: what a test kit takes.
            fn from(worker: DeferWorker) -> Self {
                worker.inner
            }
        }
    };
}
