//! Proxy in front of a real server that replaces the replies to some commands.
//!
//! Such a command is replaced by a script that returns the reply. So the reply keeps its position
//! among the others, and the server does not run the original command.

use std::sync::Arc;

use redis_test::server::RedisServer;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use super::server_namespace::{connect_to_server, start_server};

type CommandArgs = Vec<Vec<u8>>;

pub(crate) struct ScriptedProxy {
    port: u16,
    server: RedisServer,
}

/// A command and the connection on which it came.
pub(crate) struct ProxiedCommand<'a> {
    pub(crate) args: &'a [&'a str],
    /// Port of the proxy.
    pub(crate) proxy_port: u16,
    /// Index of the connection to the proxy.
    pub(crate) connection_index: usize,
}

/// Returns a script whose result is `reply`, written in Lua.
pub(crate) fn reply_script(reply: &str) -> Option<String> {
    Some(format!("return {reply}"))
}

impl ScriptedProxy {
    /// Starts a server and its proxy. `script_for` returns the script that replaces a command, if
    /// any.
    pub(crate) async fn start(
        script_for: impl Fn(&ProxiedCommand<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let server = start_server().await;
        let (_, server_port) = server.host_and_port().expect("it listens on TCP");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let script_for = Arc::new(script_for);
        crate::store::spawn(async move {
            for connection_index in 0.. {
                let Ok((client, _)) = listener.accept().await else { return };
                let script_for = Arc::clone(&script_for);
                crate::store::spawn(async move {
                    let replace = |args: &[&str]| {
                        script_for(&ProxiedCommand { args, proxy_port: port, connection_index })
                    };
                    proxy_connection(client, server_port, replace).await
                });
            }
        });
        Self { port, server }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Sends a command to the server directly.
    pub(crate) async fn query_server<T: redis::FromRedisValue>(&self, args: &[&str]) -> T {
        let mut connection = connect_to_server(&self.server).await.expect("it runs");
        let mut command = redis::cmd(args[0]);
        command.arg(&args[1..]);
        command.query_async(&mut connection).await.expect("the command is right")
    }
}

async fn proxy_connection(
    client: TcpStream,
    server: u16,
    script_for: impl Fn(&[&str]) -> Option<String>,
) -> Option<()> {
    let (client, mut to_client) = client.into_split();
    let (mut replies, mut requests) =
        TcpStream::connect(("127.0.0.1", server)).await.ok()?.into_split();
    let forward = async {
        let mut client = BufReader::new(client);
        while let Some(mut args) = read_command(&mut client).await {
            let script = {
                let texts: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
                script_for(&texts.iter().map(AsRef::as_ref).collect::<Vec<&str>>())
            };
            if let Some(script) = script {
                args = [&b"EVAL"[..], script.as_bytes(), b"0"].map(<[u8]>::to_vec).into();
            }
            requests.write_all(&encode_command(&args)).await.ok()?;
        }
        None::<()>
    };
    tokio::select! {
        _ = forward => None,
        _ = tokio::io::copy(&mut replies, &mut to_client) => None,
    }
}

fn encode_command(args: &CommandArgs) -> Vec<u8> {
    let mut encoded = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        encoded.extend(format!("${}\r\n", arg.len()).bytes());
        encoded.extend(arg);
        encoded.extend(b"\r\n");
    }
    encoded
}

/// Reads one command; `None` at the end of the connection.
pub(crate) async fn read_command(
    client: &mut BufReader<impl AsyncRead + Unpin>,
) -> Option<CommandArgs> {
    let mut args = Vec::new();
    for _ in 0..read_length(client).await? {
        let mut arg = vec![0; read_length(client).await? + 2];
        client.read_exact(&mut arg).await.ok()?;
        arg.truncate(arg.len() - 2);
        args.push(arg);
    }
    Some(args)
}

async fn read_length(client: &mut BufReader<impl AsyncRead + Unpin>) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.trim_end().get(1..)?.parse().ok()
}
