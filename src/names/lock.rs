//! What a `LockLayer` can be set to beyond what most need.

/// Settings of `LockLayer`, for `__define_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __lock_settings {
    ($native:ty) => {
        impl LockLayer {
            /// Don't wait: the busy answer at once. The default.
            #[must_use]
            pub fn reject(self) -> Self {
                Self { gate: self.gate.reject() }
            }

            /// Ask again up to `times` times, `every` apart (at least 10 ms), before the busy answer. The
            /// first attempt is not counted: `retry(3, every)` asks four times at most, and waits for
            /// three pauses, or for ten minutes if that is less.
            ///
            /// Nobody who asks like this has a place in line: whoever [waits](Self::wait) is served
            /// first, and of two that retry the one that happens to ask in time. Of `reject`, `wait` and
            /// `retry` the last one set counts. With a `DeferLayer` outside nobody asks again: the request is
            /// deferred.
            #[must_use]
            pub fn retry(self, times: u32, every: ::std::time::Duration) -> Self {
                Self { gate: self.gate.retry(times, every) }
            }

            /// Locks requests of exactly these methods, safe ones included. Default: every method but GET,
            /// HEAD, OPTIONS and TRACE.
            ///
            /// # Panics
            ///
            /// If there are none, or a name is none, or is a known method in lower case: names are
            /// case-sensitive, so it would match nothing and lock nothing.
            #[must_use]
            pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
                Self { gate: self.gate.methods(methods) }
            }

            /// The status of the busy answer, also after a wait. Default
            /// [`BusyStatus::Conflict`](::lockgate::BusyStatus), 409.
            #[must_use]
            pub fn busy_status(self, status: ::lockgate::BusyStatus) -> Self {
                Self { gate: self.gate.busy_status(status) }
            }
        }
    };
}
