//! Replays deferred requests through the application's routes, in a thread of their own.
//!
//! actix services stay in the thread that created them, but the futures of a worker may move. The
//! routes therefore live in a thread with a `System` of its own, which is independent of the
//! worker's runtime. A run is sent there through a channel, and its outcome comes back through
//! another one; dropping the receiver of the outcome stops the run.

use std::{fmt, io, panic::AssertUnwindSafe, rc::Rc, sync::mpsc as std_mpsc, thread};

use actix_http::Request;
use actix_rt::System;
use actix_service::{
    IntoServiceFactory, Service, ServiceExt, ServiceFactory,
    boxed::{self, BoxService},
};
use actix_web::{
    Error,
    body::{BoxBody, MessageBody},
    dev::{AppConfig, ServiceResponse},
};
use bytes::Bytes;
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, LocalBoxFuture},
};
use lockgate::{
    defer::{ReplayBody, ReplayOutcome, ReplayResponse, Replayer},
    driver::{HttpRequestHead, ReplayMarker},
};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{Instrument as _, Span};

pub(crate) use self::build_and_call::extension_inserter;
use self::build_and_call::{build_request, call_service};

mod build_and_call;
#[cfg(test)]
mod tests;

/// Routes of an `App`, after they are built.
type RouteService = BoxService<Request, ServiceResponse<BoxBody>, Error>;

/// Factory that an `App` becomes, with response bodies of the type `B`.
pub(crate) trait AppServiceFactory<B>:
    ServiceFactory<Request, Config = AppConfig, Response = ServiceResponse<B>, Error = Error> + 'static
{
}

impl<S, B> AppServiceFactory<B> for S where
    S: ServiceFactory<Request, Config = AppConfig, Response = ServiceResponse<B>, Error = Error>
        + 'static
{
}

/// Run on its way to the thread of the routes.
struct ReplayCommand {
    head: HttpRequestHead,
    body: Bytes,
    marker: ReplayMarker,
    response_limit: usize,
    outcome_sender: oneshot::Sender<ReplayOutcome>,
    /// Span of the run; the thread of the routes has none.
    span: Span,
}

/// Replayer with an `App` of its own.
pub(crate) struct AppReplayer {
    commands: mpsc::UnboundedSender<ReplayCommand>,
    /// Closed when the routes are built, or could not be.
    building: watch::Receiver<()>,
}

impl AppReplayer {
    /// Starts the thread, which ends with the replayer.
    ///
    /// # Errors
    ///
    /// If the operating system cannot start a thread or a runtime for it.
    pub(crate) fn start<F, A, S, B>(app: F, thread: thread::Builder) -> io::Result<Self>
    where
        F: FnOnce() -> A + Send + 'static,
        A: IntoServiceFactory<S, Request> + 'static,
        S: AppServiceFactory<B>,
        B: MessageBody + 'static,
    {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (ready_sender, ready_receiver) = std_mpsc::channel();
        let (building_sender, building) = watch::channel(());
        let run_routes = move || {
            let system = System::new();
            let _ = ready_sender.send(());
            system.block_on(serve_commands(app, building_sender, inbox));
        };
        thread.name("lockgate-replay".to_owned()).spawn(run_routes)?;
        // The sender is dropped if the system could not be created.
        let no_runtime =
            |_| io::Error::other("the runtime for deferred requests could not be built");
        ready_receiver.recv().map_err(no_runtime)?;
        Ok(Self { commands, building })
    }
}

impl Replayer for AppReplayer {
    fn replay(
        &self,
        head: HttpRequestHead,
        body: Bytes,
        marker: ReplayMarker,
        response_limit: usize,
    ) -> BoxFuture<'static, ReplayOutcome> {
        let (outcome_sender, outcome) = oneshot::channel();
        let marker_copy = marker.clone();
        let command = ReplayCommand {
            head,
            body,
            marker: marker_copy,
            response_limit,
            outcome_sender,
            span: Span::current(),
        };
        // If the thread has ended, the command is dropped with its sender, which wakes the
        // receiver.
        let _ = self.commands.send(command);
        Box::pin(async move {
            #[cfg(feature = "test-kit")]
            let _stopped_clock = stop_paused_clock();
            outcome.await.unwrap_or_else(|_| outcome_without_thread(&marker))
        })
    }

    /// The layers of the routes are applied in their thread, after the worker was created.
    fn wait_until_built(&self) -> BoxFuture<'static, ()> {
        let mut building = self.building.clone();
        Box::pin(async move {
            // Nothing is sent: the error is the end of the sender.
            let _ = building.changed().await;
        })
    }
}

impl fmt::Debug for AppReplayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppReplayer").finish_non_exhaustive()
    }
}

/// Keeps a paused clock of the caller's runtime at its time until the result is dropped.
///
/// Such a clock advances to the next timer when all tasks of its runtime wait. A run is in another
/// runtime, so the clock would pass `max_hold` and `max_run_time` at once. tokio does not advance
/// it while a blocking task runs.
#[cfg(feature = "test-kit")]
fn stop_paused_clock() -> std_mpsc::Sender<()> {
    let (end_of_run, dropped) = std_mpsc::channel::<()>();
    // Nothing is sent: the error is the end of the sender.
    drop(actix_rt::task::spawn_blocking(move || dropped.recv()));
    end_of_run
}

/// Returns the outcome of a run after the thread has ended: a run that reached no handler is left
/// to another worker.
fn outcome_without_thread(marker: &ReplayMarker) -> ReplayOutcome {
    let job = &marker.job().id;
    tracing::error!(job = %job.log_prefix(), "job not run: the thread of the routes ended; restart the process");
    if marker.try_abandon() { ReplayOutcome::Unreachable } else { ReplayOutcome::Failed }
}

/// Builds the routes in their thread, and runs each command in a task until the replayer is
/// dropped. `building` is dropped when the routes are built, or could not be.
async fn serve_commands<F, A, S, B>(
    app: F,
    building: watch::Sender<()>,
    mut inbox: mpsc::UnboundedReceiver<ReplayCommand>,
) where
    F: FnOnce() -> A,
    A: IntoServiceFactory<S, Request>,
    S: AppServiceFactory<B>,
    B: MessageBody + 'static,
{
    let built = AssertUnwindSafe(build_service(app)).catch_unwind().await;
    drop(building);
    let Ok(Ok(service)) = built else {
        tracing::error!("jobs cannot run: the application's routes could not be built");
        return decline_all(inbox).await;
    };
    let service = Rc::new(service);
    while let Some(command) = inbox.recv().await {
        let span = command.span.clone();
        actix_rt::spawn(run_command(Rc::clone(&service), command).instrument(span));
    }
}

async fn build_service<F, A, S, B>(app: F) -> Result<RouteService, S::InitError>
where
    F: FnOnce() -> A,
    A: IntoServiceFactory<S, Request>,
    S: AppServiceFactory<B>,
    B: MessageBody + 'static,
{
    let factory = IntoServiceFactory::<S, Request>::into_factory(app());
    let service = factory.new_service(AppConfig::default()).await?;
    let service = ServiceExt::<Request>::map(service, ServiceResponse::map_into_boxed_body);
    Ok(boxed::service(service))
}

/// Responds like a worker without the route, so that the jobs return to their queues uncharged.
async fn decline_all(mut inbox: mpsc::UnboundedReceiver<ReplayCommand>) {
    while let Some(command) = inbox.recv().await {
        let _ = command.outcome_sender.send(ReplayOutcome::Answered(ReplayResponse {
            status: 404,
            headers: Vec::new(),
            body: ReplayBody::TooLong,
        }));
    }
}

/// Runs one job until it ends or its receiver is dropped.
async fn run_command<S>(service: Rc<S>, command: ReplayCommand)
where
    S: Service<Request, Response = ServiceResponse<BoxBody>, Error = Error>,
{
    let ReplayCommand { head, body, marker, response_limit, mut outcome_sender, .. } = command;
    let scope = marker.clone();
    let call = async {
        match build_request(head, body, &marker) {
            Some(request) => call_service(&*service, request, &marker, response_limit).await,
            None => ReplayOutcome::Failed,
        }
    };
    // A panic is a failed attempt and must not reach the next job.
    let call: LocalBoxFuture<'_, ReplayOutcome> = AssertUnwindSafe(scope.scope(call))
        .catch_unwind()
        .map(|outcome| outcome.unwrap_or(ReplayOutcome::Panicked))
        .boxed_local();
    tokio::select! {
        // In this order: a run without a receiver must not reach its handler, also if it waited
        // here while another handler blocked the thread.
        biased;
        () = outcome_sender.closed() => {}
        outcome = call => {
            // If the receiver is gone, the worker has lost the job and has reported that.
            let _ = outcome_sender.send(outcome);
        }
    }
}
