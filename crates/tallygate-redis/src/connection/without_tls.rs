//! A build without the feature `tls`: no connection uses it, because a URL that needs it is refused.

use std::convert::Infallible;
use std::path::Path;

use tokio::net::TcpStream;

use super::failure::Failure;
use crate::builder::ConnectError;

#[derive(Clone)]
pub(crate) struct Tls(Infallible);

impl Tls {
    pub(crate) fn new(_ca: Option<&Path>) -> Result<Self, ConnectError> {
        unreachable!("`UrlError::TlsDisabled` comes first")
    }

    pub(crate) async fn wrap(&self, _host: &str, _stream: TcpStream) -> Result<TcpStream, Failure> {
        match self.0 {}
    }
}
