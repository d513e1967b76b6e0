use std::net::TcpListener;

use super::Server;

/// However much memory it has to give back before its port is free: else the one that is started in its place finds the port
/// taken, and ends.
#[tokio::test]
async fn a_server_that_was_killed_is_gone() {
    let mut server = Server::start().await;
    let mut fill = redis::cmd("EVAL");
    fill.arg("for n = 1, 100000 do redis.call('SET', n, string.rep('x', 1000)) end").arg(0);
    fill.query_async::<()>(&mut server.connection().await).await.expect("it has room");
    server.kill();
    let taken = TcpListener::bind(("127.0.0.1", server.port()));
    assert!(taken.is_ok(), "{taken:?}");
    drop(taken);
    server.restart().await;
}
