//! In front of a real server of its own: a command may be answered by what a test says instead.
//!
//! Such a command is replaced by a script that returns that answer. So it has its turn among the others, and the
//! server has not run what was asked.

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

/// A command, and where it came.
pub(crate) struct ProxiedCommand<'a> {
    pub(crate) args: &'a [&'a str],
    /// Of the front.
    pub(crate) proxy_port: u16,
    /// Which of the sockets that were made to it.
    pub(crate) connection_index: usize,
}

/// Instead of a command: this, written in Lua, is its answer.
pub(crate) fn reply_script(answer: &str) -> Option<String> {
    Some(format!("return {answer}"))
}

impl ScriptedProxy {
    /// `instead`: what a command is answered, if not by the server.
    pub(crate) async fn start(
        instead: impl Fn(&ProxiedCommand<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let server = start_server().await;
        let (_, behind) = server.host_and_port().expect("it listens on TCP");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let instead = Arc::new(instead);
        crate::store::spawn(async move {
            for socket in 0.. {
                let Ok((client, _)) = listener.accept().await else { return };
                let instead = Arc::clone(&instead);
                crate::store::spawn(async move {
                    let swap = |words: &[&str]| {
                        instead(&ProxiedCommand {
                            args: words,
                            proxy_port: port,
                            connection_index: socket,
                        })
                    };
                    proxy_connection(client, behind, swap).await
                });
            }
        });
        Self { port, server }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Of the server itself.
    pub(crate) async fn query_server<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = connect_to_server(&self.server).await.expect("it runs");
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut connection).await.expect("the command is right")
    }
}

async fn proxy_connection(
    client: TcpStream,
    server: u16,
    instead: impl Fn(&[&str]) -> Option<String>,
) -> Option<()> {
    let (client, mut back) = client.into_split();
    let (mut answers, mut calls) =
        TcpStream::connect(("127.0.0.1", server)).await.ok()?.into_split();
    let there = async {
        let mut client = BufReader::new(client);
        while let Some(mut words) = read_command(&mut client).await {
            let script = {
                let told: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
                instead(&told.iter().map(AsRef::as_ref).collect::<Vec<&str>>())
            };
            if let Some(script) = script {
                words = [&b"EVAL"[..], script.as_bytes(), b"0"].map(<[u8]>::to_vec).into();
            }
            calls.write_all(&encode_command(&words)).await.ok()?;
        }
        None::<()>
    };
    tokio::select! {
        _ = there => None,
        _ = tokio::io::copy(&mut answers, &mut back) => None,
    }
}

fn encode_command(words: &CommandArgs) -> Vec<u8> {
    let mut packed = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        packed.extend(format!("${}\r\n", word.len()).bytes());
        packed.extend(word);
        packed.extend(b"\r\n");
    }
    packed
}

/// One command, or `None` at the end.
pub(crate) async fn read_command(
    client: &mut BufReader<impl AsyncRead + Unpin>,
) -> Option<CommandArgs> {
    let mut words = Vec::new();
    for _ in 0..read_length(client).await? {
        let mut word = vec![0; read_length(client).await? + 2];
        client.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

async fn read_length(client: &mut BufReader<impl AsyncRead + Unpin>) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.trim_end().get(1..)?.parse().ok()
}
