//! A queue that nobody works on.

use std::{
    io,
    sync::{Arc, Mutex},
};

use super::{Routes, SECOND, Working, ended, put_off};
use crate::{defer::unwatched::Workers, store::Store};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn warnings(&self) -> usize {
        let log = self.0.lock().unwrap();
        String::from_utf8_lossy(&log).matches("no worker is alive").count()
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_without_a_worker_is_said_once_and_again_when_it_is_so_again() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let store = Store::memory();
    let workers = store.room::<Workers>();

    let first = put_off(&store, "/1").await;
    for _ in 0..3 {
        workers.look(&store, &first).await;
        tokio::time::sleep(SECOND * 11).await;
    }
    assert_eq!(log.warnings(), 1);

    let other = store.as_another_process();
    let worker = Working::on(&other, &Routes::default());
    ended(&store, &first).await;
    workers.look(&store, &first).await;
    worker.stop().await;

    tokio::time::sleep(SECOND * 11).await;
    let second = put_off(&store, "/2").await;
    workers.look(&store, &second).await;
    assert_eq!(log.warnings(), 2);
}
