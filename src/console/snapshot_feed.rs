//! [`SnapshotFeed`]: one snapshot for all pages that are open in this process.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    Stream,
    stream::{BoxStream, StreamExt as _, unfold},
};
use tokio::{sync::Mutex, time::Instant};

use super::console_snapshot::take_snapshot;
use crate::store::Store;

/// Time between two snapshots while a page is open.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// Duration of one stream. It is shorter than the usual time for a graceful shutdown, since a
/// server waits for open responses; a browser connects again by itself.
const MAX_STREAM_DURATION: Duration = Duration::from_secs(20);

/// The latest snapshot, kept with the store, whose consoles share it: actix-web makes one for each
/// thread. It is taken when a page asks and the last one is older than `REFRESH_INTERVAL`, so a
/// hundred pages cost as much as one, and no page costs nothing.
#[derive(Default)]
pub(super) struct SnapshotFeed {
    /// The mutex is held while a snapshot is taken, so that all others wait for that one.
    latest: Mutex<Option<(Instant, Bytes)>>,
}

impl SnapshotFeed {
    /// Returns a snapshot that is at most `REFRESH_INTERVAL` old, as JSON.
    pub(super) async fn latest(&self, store: &Store) -> Bytes {
        let mut latest = self.latest.lock().await;
        if let Some((taken_at, snapshot)) = latest.as_ref()
            && taken_at.elapsed() < REFRESH_INTERVAL
        {
            return snapshot.clone();
        }
        let snapshot = Bytes::from(take_snapshot(store).await.to_string());
        *latest = Some((Instant::now(), snapshot.clone()));
        snapshot
    }

    /// Opens a stream of snapshots as server-sent events.
    pub(super) fn open_stream(store: Store) -> ConsoleEvents {
        let ends_at = Instant::now() + MAX_STREAM_DURATION;
        let events = unfold(Instant::now(), move |next_at| {
            let store = store.clone();
            async move {
                if next_at >= ends_at {
                    return None;
                }
                tokio::time::sleep_until(next_at).await;
                let snapshot = store.extension::<Self>().latest(&store).await;
                let event = [b"retry: 1000\ndata: ", &snapshot[..], b"\n\n"].concat();
                Some((Bytes::from(event), next_at + REFRESH_INTERVAL))
            }
        });
        ConsoleEvents(events.boxed())
    }
}

/// Body of an event stream. Each item is one event. It can be dropped at any time.
pub struct ConsoleEvents(BoxStream<'static, Bytes>);

impl Stream for ConsoleEvents {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_next_unpin(context)
    }
}

impl fmt::Debug for ConsoleEvents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ConsoleEvents").finish_non_exhaustive()
    }
}
