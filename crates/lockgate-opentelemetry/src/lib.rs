//! OpenTelemetry trace context for [`lockgate`].
//!
//! A deferred request and a task run later, often in another process. [`OpenTelemetryPropagator`]
//! stores the context of the span that accepted them, and gives the span of each run a link to it,
//! or makes it the parent: see [`TraceRelation`](lockgate::TraceRelation).
//!
//! ```
//! use lockgate::Store;
//! use lockgate_opentelemetry::OpenTelemetryPropagator;
//! use opentelemetry::trace::TracerProvider as _;
//! use opentelemetry_sdk::trace::SdkTracerProvider;
//! use tracing_subscriber::layer::SubscriberExt as _;
//!
//! let provider = SdkTracerProvider::builder().build(); // with an exporter, such as OTLP
//! let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
//! let subscriber = tracing_subscriber::registry().with(layer);
//! // At the start of the program: tracing::subscriber::set_global_default(subscriber)?;
//! # drop(subscriber);
//! let store = Store::memory().with_trace_propagator(OpenTelemetryPropagator);
//! ```
//!
//! The versions of `opentelemetry`, `opentelemetry_sdk` and `tracing-opentelemetry` must be those
//! of this crate: 0.33, 0.33 and 0.34. With others the spans are separate traces.

mod open_telemetry_propagator;

pub use self::open_telemetry_propagator::OpenTelemetryPropagator;
