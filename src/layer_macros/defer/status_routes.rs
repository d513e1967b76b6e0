//! `DeferredRoutes`, the status resource.

/// Defines `DeferredRoutes` and `deferred_routes`, for `__define_defer`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_deferred_routes {
    ($native:ty) => {
        /// Routes of the status resource of deferred requests. Created by [`deferred_routes`].
        #[derive(Debug, Clone)]
        #[must_use = "the routes must be mounted"]
        pub struct DeferredRoutes {
            pub(crate) path: String,
            pub(crate) gate: ::lockgate::defer::StatusGate<$native>,
        }

        /// Creates the status resource at this path, to which the `Location` of a 202 points.
        ///
        /// | request | response |
        /// |---|---|
        /// | `GET {path}/{id}` | the job as a JSON document |
        /// | the same with `Accept: text/event-stream` | a stream of that document |
        /// | `GET {path}/{id}/response` | the stored response, unchanged |
        /// | `DELETE {path}/{id}` | cancels a request that has not started |
        ///
        /// - `Prefer: wait=N` (at most 25 s) holds the response until the job changes, and for
        ///   `{path}/{id}/response` until there is a response or will be none. With 4,096 waiting
        ///   requests in this process, further ones get their response at once.
        /// - `If-None-Match` omits a document that the client has already.
        /// - A stored response is not treated as a page of this origin by browsers
        ///   (`Content-Security-Policy: sandbox`), unless the handler has sent a policy of its own.
        /// - An id that is unknown, malformed or of another owner gets the same 404.
        /// - All four are 410 for a job that has ended and was evicted or purged early. The
        ///   response tells the owner that the job has run or how else it ended; other clients
        ///   learn nothing.
        ///
        /// At the root (`"/"`) every path of one segment is taken for an id, and so is every path
        /// of two segments that ends with `response`. In actix-web the first route that matches is
        /// used, so mount this one after the others; in axum it is the most specific one.
        pub fn deferred_routes(path: &str) -> DeferredRoutes {
            let path = path.trim_matches('/');
            let path = if path.is_empty() { String::new() } else { format!("/{path}") };
            DeferredRoutes { path, gate: ::lockgate::defer::StatusGate::new() }
        }

        impl DeferredRoutes {
            /// Uses this store instead of the one that the request provides.
            pub fn store(self, store: &::lockgate::Store) -> Self {
                Self { gate: self.gate.store(store), ..self }
            }

            /// Shows a job only to its [owner](DeferLayer::owner), or to the
            /// [identity](DeferLayer::carry_identity) that was carried with it. The function
            /// returns the viewer of a request.
            ///
            /// Default: every client that knows the id, which is 128 random bits.
            pub fn visible_to(
                self,
                asker: impl Fn(&$native) -> Option<String> + Send + Sync + 'static,
            ) -> Self {
                Self { gate: self.gate.visible_to(asker), ..self }
            }

            /// Like [`visible_to`](Self::visible_to), for a viewer that has to be looked up, such
            /// as in a session or a database.
            ///
            /// The function takes the data that it needs from the request, and the future that it
            /// returns continues with them. It is awaited once for each request, before the store
            /// is asked, without a time limit. If it returns `None`, the response is the 404 of an
            /// unknown id.
            pub fn visible_to_async<F>(
                self,
                asker: impl Fn(&$native) -> F + Send + Sync + 'static,
            ) -> Self
            where
                F: ::std::future::Future<Output = Option<String>> + Send + 'static,
            {
                Self { gate: self.gate.visible_to_async(asker), ..self }
            }
        }
    };
}
