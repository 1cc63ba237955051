"""Certificates without handing keys around: requests, signed by the silo's own CA or by a corporate PKI; and checks."""

from collections.abc import Collection
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tdcd.errors import DeploymentError, nearest
from tdcd.files import write_atomically
from tdcd.sites.security.identity import (
    Identity,
    Pair,
    check_any,
    names_of,
    read_certificates,
    read_key,
    sign,
    subject,
    uses_of,
    write_key,
)
from tdcd.sites.security.tls import Trust
from tdcd.sites.site_file import ClientSite, HubSite, is_client, read_site

HUB = "hub"
"""Asks for a hub's certificate, where a client's name is expected."""


def make_request(folder: Path, identity: Identity) -> Path:
    """Make a key, unless there is one, and a request for a certificate of it; return the request's file."""
    pair = Pair.named(folder, identity.stem)
    if pair.key.exists():
        key = read_key(pair.key)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        write_key(pair.key, key)
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject(identity))
        .add_extension(x509.SubjectAlternativeName(names_of(identity)), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses_of(identity)), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = pair.certificate.with_suffix(".csr")
    write_atomically(file, request.public_bytes(serialization.Encoding.PEM))
    return file


def sign_request(folder: Path, silo: str, file: Path, clients: Collection[str], days: float) -> tuple[Identity, Path]:
    """Sign a request with a silo's CA; return whose it is, and the certificate's file.

    Only its name and its key are taken from the request; all else is as for any certificate of that holder.

    Raises:
        DeploymentError: it cannot be read, is not in order, or is of somebody that the job does not name.
    """
    try:
        request = x509.load_pem_x509_csr(file.read_bytes())
    except OSError as error:
        raise DeploymentError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DeploymentError(f"{file}: damaged, not a signing request in PEM form") from error
    key = request.public_key()
    if not request.is_signature_valid or not isinstance(key, (ec.EllipticCurvePublicKey, rsa.RSAPublicKey)):
        raise DeploymentError(f"{file}: whoever made it does not have its key, or the key is of another kind")
    identity = next(Identity.all_in(request), None)
    if identity is None or identity.silo != silo:
        raise DeploymentError(f"{file}: it names {identity or 'nobody'}, and this is the CA of silo '{silo}'")
    if identity.client is not None and identity.client not in clients:
        raise DeploymentError(f"{file}: the job names no {identity}{nearest(identity.client, clients)}")
    made = folder / f"{identity.stem}.pem"
    certificate = sign(Pair.named(folder, "ca"), identity, key, days)
    write_atomically(made, certificate.public_bytes(serialization.Encoding.PEM))
    return identity, made


def check_site(file: Path, silo: str) -> tuple[Identity, dict[str, Path]]:
    """Check the certificates that a site file names, as the site does when it starts.

    Returns:
        Whose they are, and the files by what they are.

    Raises:
        DeploymentError: one is missing, damaged, expired, or somebody else's.
    """
    site: HubSite | ClientSite
    site = read_site(file, ClientSite) if is_client(file) else read_site(file, HubSite)
    if site.tls is None:
        raise DeploymentError(f"{file}: it names no certificates ([tls] ca, certificate, key)")
    shown, *_ = read_certificates(Path(site.tls.certificate))
    identity = next(Identity.all_in(shown), None)
    if identity is None or identity.silo != silo:
        raise DeploymentError(f"{site.tls.certificate}: it is of {identity or 'nobody'}, not of silo '{silo}'")
    trust = Trust.of(site.tls, identity)
    for name, path in trust.authorities.items():
        check_any(read_certificates(path), f"{path}: the CA of silo '{name}'")
    cas = {f"the CA of silo '{name}'": path for name, path in trust.authorities.items()}
    return identity, {str(identity): trust.pair.certificate, **cas}
