//! `SingleServer`: opens connections and subscriptions to one server, cluster node or sentinel.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo as _, Msg, ProtocolVersion,
    PushInfo, PushKind, RedisError, Value,
    aio::MultiplexedConnection,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use tokio::sync::mpsc;

use super::{
    ConnectError, MessageStream, RedisConnection, TimeoutAndDisconnectFlag,
    redis_tls_settings::RedisTlsSettings,
    store_url::{LoginCredentials, StoreUrl},
};

#[derive(Clone)]
pub(in super::super) struct SingleServer {
    client: Arc<Client>,
}

impl SingleServer {
    pub(super) fn new(
        server: ConnectionAddr,
        url: &StoreUrl,
        tls_settings: &RedisTlsSettings,
    ) -> Result<Self, ConnectError> {
        // RESP3 has the push that reports a disconnect.
        let client = build_client(server, url, tls_settings, ProtocolVersion::RESP3);
        client.map(Self::from_client).map_err(|_| ConnectError::invalid_certificates())
    }

    /// Creates the client of a sentinel. Sentinels of version 6.2 do not support RESP3.
    pub(super) fn new_sentinel(
        server: ConnectionAddr,
        url: &StoreUrl,
        tls_settings: &RedisTlsSettings,
    ) -> Result<Self, ConnectError> {
        let client = build_client(server, url, tls_settings, ProtocolVersion::RESP2);
        client.map(Self::from_client).map_err(|_| ConnectError::invalid_certificates())
    }

    fn from_client(client: Client) -> Self {
        Self { client: Arc::new(client) }
    }

    pub(super) async fn open(
        &self,
        settings: &TimeoutAndDisconnectFlag,
    ) -> Result<RedisConnection, ConnectError> {
        self.connect(&settings.to_config()).await.map(RedisConnection::Dedicated)
    }

    /// Opens a connection without timeouts and without a report of its end.
    pub(super) async fn open_untracked(&self) -> Result<MultiplexedConnection, ConnectError> {
        let config = AsyncConnectionConfig::new();
        self.connect(&config.set_connection_timeout(None).set_response_timeout(None)).await
    }

    async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, ConnectError> {
        let opened = self.client.get_multiplexed_async_connection_with_config(config).await;
        opened.map_err(|error| ConnectError::from_redis(&error).at(self.address()))
    }

    /// Returns the server's address, without the login.
    pub(super) fn address(&self) -> &ConnectionAddr {
        self.client.get_connection_info().addr()
    }

    pub(in super::super) async fn subscribe(
        &self,
        channels: &[String],
    ) -> Result<MessageStream, ConnectError> {
        let subscribed = async {
            let mut messages = self.client.get_async_pubsub().await?;
            messages.subscribe(channels).await?;
            Ok::<_, RedisError>(messages)
        };
        let (sink, stream) =
            subscribed.await.map_err(|error| ConnectError::from_redis(&error))?.split();
        // The stream owns the sink: dropping either half ends the connection.
        Ok(stream.inspect(move |_| _ = &sink).boxed())
    }

    /// Subscribes to shard channels, all of shards that this node owns. Returns `None` if the
    /// server has no shard channels (before 7.0).
    ///
    /// The stream ends with the connection, or when one of the shards moves to another node.
    pub(in super::super) async fn subscribe_to_shards(
        &self,
        channels: &[String],
    ) -> Result<Option<MessageStream>, ConnectError> {
        let (push_sender, pushes) = mpsc::unbounded_channel();
        let config = TimeoutAndDisconnectFlag::default().to_config().set_push_sender(push_sender);
        let mut connection = self.connect(&config).await?;
        // One command for each channel: the channels of one command must share a slot, and redis-rs
        // takes each push as the reply to one command.
        let subscribe = |channel| redis::cmd("SSUBSCRIBE").arg(channel).to_owned();
        let Some((first, later_channels)) = channels.split_first() else { return Ok(None) };
        // The first channel is subscribed alone, because redis-rs hides the error of one command
        // among several.
        if let Err(error) = subscribe(first).query_async::<Value>(&mut connection).await {
            let is_unsupported =
                error.detail().is_some_and(|text| text.contains("unknown command"));
            return if is_unsupported { Ok(None) } else { Err(ConnectError::from_redis(&error)) };
        }
        let mut pipe = redis::pipe();
        later_channels.iter().for_each(|channel| _ = pipe.add_command(subscribe(channel)).ignore());
        let subscribed = pipe.query_async::<()>(&mut connection).await;
        subscribed.map_err(|error| ConnectError::from_redis(&error))?;
        Ok(Some(shard_messages(pushes, connection)))
    }
}

/// Returns the messages of subscribed shard channels, until the connection or a subscription ends.
fn shard_messages(
    pushes: mpsc::UnboundedReceiver<PushInfo>,
    connection: MultiplexedConnection,
) -> MessageStream {
    stream::unfold((pushes, connection), |(mut pushes, connection)| async {
        loop {
            let push: PushInfo = pushes.recv().await?;
            match push.kind {
                PushKind::SMessage => {
                    let message = Msg::from_push_info(push)?;
                    return Some((message, (pushes, connection)));
                }
                PushKind::SUnsubscribe | PushKind::Disconnection => return None,
                _ => {}
            }
        }
    })
    .boxed()
}

fn build_client(
    server: ConnectionAddr,
    url: &StoreUrl,
    tls_settings: &RedisTlsSettings,
    protocol: ProtocolVersion,
) -> Result<Client, RedisError> {
    let info = server.into_connection_info()?.set_tcp_settings(tcp_settings());
    let LoginCredentials { user, password } = &url.credentials;
    // `HELLO` is sent alone, without the command that sets the library's name. A server that is
    // full answers the first command and closes; among several commands, redis-rs would report only
    // the closed connection.
    let settings = info.redis_settings().clone().set_protocol(protocol);
    let mut settings = settings.set_skip_set_lib_name();
    settings = settings.set_db(url.database.unwrap_or(0).into());
    if let Some(user) = user {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password);
    }
    let info = info.set_redis_settings(settings);
    #[cfg(feature = "tls")]
    if let Some(certificates) = tls_settings.certificates() {
        return Client::build_with_tls(info, certificates);
    }
    let _ = tls_settings;
    Client::open(info)
}

fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive)
}
