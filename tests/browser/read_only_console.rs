//! The console of an operator who may only look.

use std::{
    net::{SocketAddr, TcpListener},
    thread,
};

use actix_web::{App, rt::System};
use axum::Router;
use lockgate::{Store, admin::Permission, console::LocalOperator};
use lockgate_tests::WebFramework;

use crate::{console_page::PAGES, demo_page::DemoPage};

/// Labels of buttons that change nothing.
const HARMLESS_BUTTONS: [&str; 5] = ["Show", "List", "Choose", "Refresh", "Check now"];

const ACTION: &str = r#"{"action":"force-release","lock":"order:7","reason":"curiosity"}"#;

pub(crate) async fn read_only_operator_cannot_act(page: &DemoPage) {
    let store = Store::memory();
    let guard = store.lock("order:7").acquire().await.expect("it is free");
    let console = format!("http://{}/ops/", serve_console(page.framework, &store));
    for fragment in PAGES.into_iter().chain(["locks?key=order%3A7", "limits?policy=p&subject=s"]) {
        page.go_to_url(&format!("{console}#{fragment}")).await;
        page.wait_until("a heading", "document.querySelector('main h2')").await;
        page.wait_for_text("#live", "live").await;
        let buttons = "[...document.querySelectorAll('main button')].map((one) => one.textContent)";
        let buttons = page.evaluate(buttons).await;
        for label in buttons.as_array().expect("a list") {
            assert!(HARMLESS_BUTTONS.iter().any(|one| label == one), "{label} on {fragment}");
        }
    }

    // What the page does not offer, its script can still send.
    let request = format!(
        "fetch('api/actions', {{ method: 'POST', headers: {{ 'content-type': 'application/json' }},
            body: {ACTION:?} }}).then((response) => response.status)"
    );
    assert_eq!(page.evaluate(&request).await, 403);
    assert_eq!(guard.loss(), None);
    page.go_to_url(&format!("{console}#audit")).await;
    page.wait_until("the record", "document.querySelector('main tbody tr')").await;
    let record = page.text("main tbody tr").await;
    for part in ["force-release", "order:7", "curiosity", "refused"] {
        assert!(record.contains(part), "{part} in {record}");
    }
}

/// Serves a console until the test ends.
fn serve_console(framework: WebFramework, store: &Store) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let operator = LocalOperator::new(Permission::Look);
    match framework {
        WebFramework::Axum => {
            listener.set_nonblocking(true).expect("a socket");
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            let console = lockgate_axum::console("/ops", operator).store(store);
            let server = lockgate_axum::serve(listener, Router::new().merge(console));
            tokio::spawn(server.into_future());
        }
        WebFramework::Actix => {
            let console = lockgate_actix_web::console("/ops", operator).store(store);
            let app = move || App::new().service(console.clone());
            thread::spawn(|| {
                System::new().block_on(async { lockgate_actix_web::serve(listener, app).await })
            });
        }
    }
    address
}
