use std::{
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::{Server, free_port};

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

/// Also while other threads start children, which have all sockets of this process for a moment.
#[test]
fn nobody_answers_at_a_free_port() {
    let enough = AtomicBool::new(false);
    let (answered, taken) = thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                Command::new("true").status().expect("it starts");
            }
        });
        let (mut answered, mut taken) = (0, 0);
        for _ in 0..2000 {
            let there = (Ipv4Addr::LOCALHOST, free_port());
            answered += u32::from(TcpStream::connect(there).is_ok());
            taken += u32::from(TcpListener::bind(there).is_err());
        }
        enough.store(true, Ordering::Relaxed);
        (answered, taken)
    });
    assert_eq!((answered, taken), (0, 0));
}
