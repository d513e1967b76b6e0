//! One server, or what looks like one.

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
    ConnectError, ConnectionSettings, MessageStream, RedisConnection,
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
        address: &StoreUrl,
        trust: &RedisTlsSettings,
    ) -> Result<Self, ConnectError> {
        // RESP3, for the push that tells of a disconnect.
        let client = build_client(server, address, trust, ProtocolVersion::RESP3);
        client.map(Self::from_client).map_err(|_| ConnectError::invalid_certificates())
    }

    /// One that watches others. Those of 6.2 speak no RESP3.
    pub(super) fn new_sentinel(
        server: ConnectionAddr,
        address: &StoreUrl,
        trust: &RedisTlsSettings,
    ) -> Result<Self, ConnectError> {
        let client = build_client(server, address, trust, ProtocolVersion::RESP2);
        client.map(Self::from_client).map_err(|_| ConnectError::invalid_certificates())
    }

    fn from_client(client: Client) -> Self {
        Self { client: Arc::new(client) }
    }

    pub(super) async fn open(
        &self,
        settings: &ConnectionSettings,
    ) -> Result<RedisConnection, ConnectError> {
        self.connect(&settings.to_config()).await.map(RedisConnection::Dedicated)
    }

    /// Without a limit of its own, and of which nobody is told when it ends.
    pub(super) async fn open_untracked(&self) -> Result<MultiplexedConnection, ConnectError> {
        let config = AsyncConnectionConfig::new();
        self.connect(&config.set_connection_timeout(None).set_response_timeout(None)).await
    }

    async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, ConnectError> {
        let made = self.client.get_multiplexed_async_connection_with_config(config).await;
        made.map_err(|error| ConnectError::from_redis(&error))
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
        // Both halves are the connection: neither may end before the other.
        Ok(stream.inspect(move |_| _ = &sink).boxed())
    }

    /// Hears these channels of shards, all of which this node has; `None` if it has no such channels (before 7.0).
    ///
    /// The messages end when the connection does, or one of the shards is not this node's any more.
    pub(in super::super) async fn subscribe_to_shards(
        &self,
        channels: &[String],
    ) -> Result<Option<MessageStream>, ConnectError> {
        let (pushed, pushes) = mpsc::unbounded_channel();
        let config = ConnectionSettings::default().to_config().set_push_sender(pushed);
        let mut connection = self.connect(&config).await?;
        // One each: only those of one slot may go together, and a push is taken for the reply of one command.
        let subscribe = |channel| redis::cmd("SSUBSCRIBE").arg(channel).to_owned();
        let Some((first, others)) = channels.split_first() else { return Ok(None) };
        // The first by itself: of an error among several the library tells nothing.
        if let Err(error) = subscribe(first).query_async::<Value>(&mut connection).await {
            let unknown = error.detail().is_some_and(|text| text.contains("unknown command"));
            return if unknown { Ok(None) } else { Err(ConnectError::from_redis(&error)) };
        }
        let mut pipe = redis::pipe();
        others.iter().for_each(|channel| _ = pipe.add_command(subscribe(channel)).ignore());
        let subscribed = pipe.query_async::<()>(&mut connection).await;
        subscribed.map_err(|error| ConnectError::from_redis(&error))?;
        let messages = stream::unfold((pushes, connection), |(mut pushes, connection)| async {
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
        });
        Ok(Some(messages.boxed()))
    }
}

fn build_client(
    server: ConnectionAddr,
    address: &StoreUrl,
    trust: &RedisTlsSettings,
    protocol: ProtocolVersion,
) -> Result<Client, RedisError> {
    let info = server.into_connection_info()?.set_tcp_settings(tcp_settings());
    let LoginCredentials { user, password } = &address.credentials;
    // Of several commands the library tells an error of the connection alone: a server that is full answers the first
    // and closes. So `HELLO` goes by itself, without the name of the library.
    let settings = info.redis_settings().clone().set_protocol(protocol);
    let mut settings = settings.set_skip_set_lib_name();
    settings = settings.set_db(address.database.unwrap_or(0).into());
    if let Some(user) = user {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password);
    }
    let info = info.set_redis_settings(settings);
    #[cfg(feature = "tls")]
    if let Some(certificates) = trust.certificates() {
        return Client::build_with_tls(info, certificates);
    }
    let _ = trust;
    Client::open(info)
}

fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive)
}
