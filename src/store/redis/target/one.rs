//! One server, or what looks like one.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use redis::{
    Client, ConnectionAddr, IntoConnectionInfo as _, ProtocolVersion, RedisError,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use super::{
    Connection, Failure, Messages, Settings,
    tls::Trust,
    url::{Address, Login},
};

#[derive(Clone)]
pub(in super::super) struct One {
    client: Arc<Client>,
}

impl One {
    pub(super) fn new(
        server: ConnectionAddr,
        address: &Address,
        trust: &Trust,
    ) -> Result<Self, Failure> {
        let client = client(server, address, trust).map_err(|error| Failure::of(&error))?;
        Ok(Self::to(client))
    }

    pub(super) fn to(client: Client) -> Self {
        Self { client: Arc::new(client) }
    }

    pub(super) async fn open(&self, settings: &Settings) -> Result<Connection, Failure> {
        let config = settings.config();
        let made = self.client.get_multiplexed_async_connection_with_config(&config).await;
        made.map(Connection::One).map_err(|error| Failure::of(&error))
    }

    pub(super) async fn subscribe(&self, channels: &[&str]) -> Result<Messages, Failure> {
        let subscribed = async {
            let mut messages = self.client.get_async_pubsub().await?;
            messages.subscribe(channels).await?;
            Ok::<_, RedisError>(messages)
        };
        let (sink, stream) = subscribed.await.map_err(|error| Failure::of(&error))?.split();
        // Both halves are the connection: neither may end before the other.
        Ok(stream.inspect(move |_| _ = &sink).boxed())
    }
}

fn client(server: ConnectionAddr, address: &Address, trust: &Trust) -> Result<Client, RedisError> {
    let info = server.into_connection_info()?.set_tcp_settings(tcp());
    let Login { user, password } = &address.login;
    // RESP3, for the push that tells of a disconnect.
    let mut settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
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

pub(super) fn tcp() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive)
}
