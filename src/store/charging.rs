//! A charge on its way. Each request that is counted waits for one, so those that wait together have no box for it.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use super::backend::{Charged, Step};
use crate::error::Error;

/// What a charge comes to.
pub(crate) enum Charging<'a> {
    Boxed(Step<'a, Charged>),
    #[cfg(feature = "redis")]
    Together(super::redis::Together<'a>),
}

impl Future for Charging<'_> {
    type Output = Result<Charged, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Boxed(step) => step.as_mut().poll(cx),
            #[cfg(feature = "redis")]
            Self::Together(together) => Pin::new(together).poll(cx),
        }
    }
}
