//! stub
#[derive(Debug)] pub struct StoreBuilder;
