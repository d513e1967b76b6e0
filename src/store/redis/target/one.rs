//! One server, or what looks like one.

use futures_util::StreamExt as _;
use redis::Client;

use super::{Connection, Failure, Messages, Settings};

#[derive(Clone)]
pub(in super::super) struct One {
    pub(in super::super) client: Client,
}

impl One {
    pub(super) async fn open(&self, settings: &Settings) -> Result<Connection, Failure> {
        let config = settings.config();
        let made = self.client.get_multiplexed_async_connection_with_config(&config).await;
        made.map(Connection::One).map_err(|error| Failure::of(&error))
    }

    pub(super) async fn subscribe(&self, channels: &[&str]) -> Result<Messages, Failure> {
        let subscribed = async {
            let mut messages = self.client.get_async_pubsub().await?;
            messages.subscribe(channels).await?;
            Ok::<_, redis::RedisError>(messages)
        };
        let (sink, stream) = subscribed.await.map_err(|error| Failure::of(&error))?.split();
        // Both halves are the connection: neither may end before the other.
        Ok(stream.inspect(move |_| _ = &sink).boxed())
    }
}
