//! A charge on its way. Each request that is counted waits for one, so those that wait together have no box for it.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use super::backend::{ChargeOutcome, StoreFuture};
use crate::error::Error;

/// What a charge comes to.
pub(crate) enum ChargeFuture<'a> {
    Boxed(StoreFuture<'a, ChargeOutcome>),
    #[cfg(feature = "redis")]
    Batched(super::redis::BatchedCharge<'a>),
}

impl Future for ChargeFuture<'_> {
    type Output = Result<ChargeOutcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Boxed(step) => step.as_mut().poll(cx),
            #[cfg(feature = "redis")]
            Self::Batched(together) => Pin::new(together).poll(cx),
        }
    }
}
