//! Asking one node, by a connection that is kept: while a node is away, the others are asked again and again.

use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};

use parking_lot::Mutex;
use redis::{RedisError, RedisResult, Value, aio::ConnectionLike as _};
use tokio::time::Instant;

use super::{
    Cluster, Endpoint, Failure, Settings,
    slots::View,
    told::{TIMEOUT, is_refused, timeout_of},
};
use crate::store::redis::target::Connection;

/// For how long one that is idle is believed: whatever stands between may have forgotten it after that.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// One to a node, taken out while in use: a question that is dropped half way leaves none that may be dead.
#[derive(Default)]
pub(super) struct Kept(Mutex<HashMap<Endpoint, (Instant, Connection)>>);

impl Kept {
    pub(super) fn take(&self, node: &Endpoint) -> Option<Connection> {
        let kept = self.0.lock().remove(node);
        kept.filter(|(since, _)| since.elapsed() < IDLE).map(|(_, connection)| connection)
    }

    pub(super) fn keep(&self, node: &Endpoint, connection: Connection) {
        self.0.lock().insert(node.clone(), (Instant::now(), connection));
    }

    /// Those that are not believed any more are closed.
    pub(super) fn close_idle(&self) {
        self.0.lock().retain(|_, (since, _)| since.elapsed() < IDLE);
    }

    /// Those to others are closed.
    pub(super) fn retain(&self, nodes: &[Endpoint]) {
        self.0.lock().retain(|node, _| nodes.contains(node));
    }
}

type Asked = RedisResult<(Vec<Value>, Connection)>;

fn is_broken(asked: &Asked) -> bool {
    asked.as_ref().is_err_and(RedisError::is_io_error)
}

/// What is answered by this connection, and the connection.
async fn ask_by(mut connection: Connection, tells: bool) -> Asked {
    let mut pipe = redis::pipe();
    pipe.cmd("CLUSTER").arg("SLOTS");
    if tells {
        pipe.cmd("CONFIG").arg("GET").arg(TIMEOUT);
    }
    let count = pipe.len();
    connection.req_packed_commands(&pipe, 0, count).await.map(|replies| (replies, connection))
}

impl Cluster {
    pub(super) async fn ask(&self, node: &Endpoint) -> Result<View, Failure> {
        let tells = self.0.tells.load(Ordering::Relaxed);
        let asked = match self.0.kept.take(node) {
            // It may have broken long ago: that is no word of the node.
            Some(kept) => Some(ask_by(kept, tells).await).filter(|asked| !is_broken(asked)),
            None => None,
        };
        let asked = match asked {
            Some(asked) => asked,
            None => {
                let settings = Settings { within: Some(self.0.within), ..Settings::default() };
                ask_by(self.node(node)?.open(&settings).await?, tells).await
            }
        };
        let (replies, connection) = asked.map_err(|error| Failure::of(&error))?;
        self.0.kept.keep(node, connection);
        self.read(replies, tells, node)
    }

    fn read(&self, replies: Vec<Value>, tells: bool, node: &Endpoint) -> Result<View, Failure> {
        let mut replies = replies.into_iter();
        let (slots, settings) = (replies.next().unwrap_or(Value::Nil), replies.next());
        if tells && settings.as_ref().is_some_and(is_refused) {
            self.0.tells_no_settings();
        }
        match slots {
            Value::ServerError(error)
                if error.details().is_some_and(|text| text.contains("cluster support")) =>
            {
                let sentence = "the store's server is no node of a cluster; use redis://host:port";
                Err(Failure::Config(sentence.to_owned()))
            }
            Value::ServerError(error) => Err(Failure::of(&error.into())),
            slots => {
                let view = View::read(slots, &self.0.slots, node).ok_or(Failure::Away)?;
                Ok(View { timeout: settings.and_then(timeout_of), ..view })
            }
        }
    }
}
