"""Who is who: the certificates of hubs and clients: issuing, reading and checking them.

Every silo has a certificate authority (CA) of its own. A certificate names its holder twice: by a URI such as
``tdcd://bank/hub`` or ``tdcd://bank/client/north``, which says who it is, and a hub's by ``hub.bank.tdcd``, which is
checked when somebody dials it, wherever it runs. A name counts only if the CA of that very silo has signed it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tdcd.errors import DeploymentError, join_names
from tdcd.files import write_atomically

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
SOON = timedelta(days=30)
"""A certificate that expires within this time is worth a warning."""
_SKEW = timedelta(hours=1)
"""Clocks at different sites differ."""


@dataclass(frozen=True)
class Identity:
    """A hub, or a client of a silo."""

    silo: str
    client: str | None = None

    def __str__(self) -> str:
        return f"client '{self.client}' of silo '{self.silo}'" if self.client else f"the hub of silo '{self.silo}'"

    @property
    def uri(self) -> str:
        """Its name in a certificate."""
        role = f"client/{quote(self.client, safe='')}" if self.client else "hub"
        return f"tdcd://{quote(self.silo, safe='')}/{role}"

    @property
    def stem(self) -> str:
        """Its name in files."""
        return f"client-{quote(self.client, safe=' ')}" if self.client else "hub"

    @classmethod
    def all_in(cls, certificate: x509.Certificate | x509.CertificateSigningRequest) -> Iterator["Identity"]:
        """Yield the names that a certificate or a request has; whether they are to be believed is another question."""
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (x509.ExtensionNotFound, ValueError):
            return
        for uri in names.get_values_for_type(x509.UniformResourceIdentifier):
            if identity := cls.from_uri(uri):
                yield identity

    @classmethod
    def from_uri(cls, uri: str) -> "Identity | None":
        """Read a name; None if it is none of tdcd's."""
        scheme, _, rest = uri.partition("://")
        match scheme, *rest.split("/"):
            case "tdcd", silo, "hub" if silo:
                return cls(unquote(silo))
            case "tdcd", silo, "client", client if silo and client:
                return cls(unquote(silo), unquote(client))
        return None


def host_name(silo: str) -> str:
    """Return what a hub's certificate is checked for when it is dialled."""
    return f"hub.{quote(silo, safe='')}.tdcd"


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path

    @classmethod
    def named(cls, folder: Path, stem: str) -> "Pair":
        """Return the files of a holder's pair."""
        return cls(folder / f"{stem}.pem", folder / f"{stem}.key")


def certify(
    folder: Path, silo: str, clients: Iterable[str], *, days: int, ca_days: int, renew: bool = False
) -> tuple[Pair, dict[Identity, Pair], set[Path]]:
    """Make what a silo lacks of certificates: its CA, its hub's, its clients'.

    Args:
        folder: Where they lie.
        silo: Whose.
        clients: Their names.
        days: How long those of hub and clients are valid.
        ca_days: How long the CA is valid.
        renew: Issue those of hub and clients again.

    Returns:
        The CA, the others by their holders, and the certificates that are new.
    """
    authority, made = Pair.named(folder, "ca"), set()
    if renew and not authority.certificate.exists():
        raise DeploymentError(
            f"{folder}: there is no CA (ca.pem) to renew certificates with; is that the right folder?"
        )
    if not authority.certificate.exists():
        made.add(make_authority(folder, silo, ca_days).certificate)
    pairs = {}
    for identity in (Identity(silo), *(Identity(silo, client) for client in clients)):
        pairs[identity] = Pair.named(folder, identity.stem)
        if renew or not pairs[identity].certificate.exists():
            made.add(issue(authority, identity, folder, days).certificate)
    return authority, pairs, made


def make_authority(folder: Path, silo: str, days: int) -> Pair:
    """Make a silo's CA: ``ca.pem`` to hand out, ``ca.key`` to keep."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"tdcd {silo} CA")
    builder = (
        _begun(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signing=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _written(Pair.named(folder, "ca"), builder.sign(key, hashes.SHA256()), key)


def issue(authority: Pair, identity: Identity, folder: Path, days: float) -> Pair:
    """Make a key and a certificate for a hub or a client, signed by its silo's CA.

    Raises:
        DeploymentError: the CA's files are missing, damaged or expired.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    return _written(Pair.named(folder, identity.stem), sign(authority, identity, key.public_key(), days), key)


def sign(authority: Pair, identity: Identity, key: PublicKey, days: float) -> x509.Certificate:
    """Make a certificate of a key that somebody has.

    Raises:
        DeploymentError: the CA's files are missing, damaged or expired.
    """
    (signer, *_), signer_key = read_certificates(authority.certificate), read_key(authority.key)
    _check_time(signer, str(authority.certificate))
    builder = (
        _begun(signer.subject, subject(identity), key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signing=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses_of(identity)), critical=False)
        .add_extension(x509.SubjectAlternativeName(names_of(identity)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False)
    )
    return builder.sign(signer_key, hashes.SHA256())


def subject(identity: Identity) -> x509.Name:
    """Return the subject of a certificate."""
    return _name(identity.uri)


def names_of(identity: Identity) -> list[x509.GeneralName]:
    """Return the names that a certificate has to have: who it is, and of a hub also what it is dialled as."""
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    return names if identity.client else [*names, x509.DNSName(host_name(identity.silo))]


def uses_of(identity: Identity) -> list[x509.ObjectIdentifier]:
    """Return what a certificate is used for: everybody dials, hubs also answer."""
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    return uses if identity.client else [*uses, ExtendedKeyUsageOID.SERVER_AUTH]


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Read a certificate and what comes after it in its file: those that have signed it, or more CAs of a silo.

    Raises:
        DeploymentError: there is none, or it is damaged.
    """
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise DeploymentError(
            f"{path}: cannot be read: {error.strerror}; certificates are made by: tdcd certs"
        ) from error
    except ValueError as error:
        raise DeploymentError(f"{path}: damaged, not a certificate in PEM form") from error


def check_own(pair: Pair, authority: Path, identity: Identity) -> x509.Certificate:
    """Check one's own certificate before it is shown to anybody.

    Raises:
        DeploymentError: it has expired, is somebody else's, is not of this CA, or does not go with its key.
    """
    (certificate, *_), key = read_certificates(pair.certificate), read_key(pair.key)
    if certificate.public_key() != key.public_key():
        raise DeploymentError(f"{pair.key}: it is not the key of {pair.certificate}")
    try:
        result = authenticate(certificate, {identity.silo: read_certificates(authority)})
    except DeploymentError as error:
        raise DeploymentError(f"{pair.certificate}: {error}") from error
    if result != identity:
        raise DeploymentError(f"{pair.certificate}: it is the certificate of {result}, not of {identity}")
    return certificate


def authenticate(certificate: x509.Certificate, authorities: Mapping[str, Sequence[x509.Certificate]]) -> Identity:
    """Say whose certificate this is.

    Args:
        certificate: What somebody shows.
        authorities: The CA of every silo that may take part; in a corporate PKI, all that may sign.

    Raises:
        DeploymentError: it has expired, names nobody, or was not signed by the CA of the silo that it names.
    """
    _check_time(certificate, "the certificate")
    identity = next(Identity.all_in(certificate), None)
    if identity is None:
        raise DeploymentError("the certificate names no hub or client of tdcd; make it with: tdcd certs")
    if identity.silo not in authorities:
        raise DeploymentError(
            f"the certificate is of {identity}, and only the silos {join_names(sorted(authorities))} may take part"
        )
    signers = [one for one in authorities[identity.silo] if _signed(certificate, one)]
    if not signers:
        raise DeploymentError(
            f"the certificate says that it is of {identity}, but the CA of silo '{identity.silo}' has not signed it"
        )
    check_any(signers, f"the CA of silo '{identity.silo}'")
    return identity


def check_any(certificates: Sequence[x509.Certificate], what: str) -> None:
    """Check that one of several certificates is valid now: a CA may be there as it was, and renewed.

    Raises:
        DeploymentError: none is.
    """
    newest = max(certificates, key=lambda one: one.not_valid_after_utc)
    _check_time(newest, what)


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Tell whether a CA has signed a certificate, and may."""
    try:
        certificate.verify_directly_issued_by(authority)
        return authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False


def expires(certificate: x509.Certificate) -> str:
    """Return a warning if a certificate expires soon."""
    end = certificate.not_valid_after_utc
    left = end - datetime.now(UTC)
    if left.total_seconds() < 0:
        return f"expired on {end:%Y-%m-%d}; renew it: tdcd certs --renew"
    return "" if left > SOON else f"expires on {end:%Y-%m-%d}, in {left.days} days; renew it: tdcd certs --renew"


def _check_time(certificate: x509.Certificate, what: str) -> None:
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise DeploymentError(
            f"{what} has expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; renew it: tdcd certs --renew"
        )
    if now < certificate.not_valid_before_utc:
        raise DeploymentError(
            f"{what} is valid only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; is a clock wrong?"
        )


def read_key(path: Path) -> PrivateKey:
    """Read a private key.

    Raises:
        DeploymentError: there is none, it is damaged, locked, or of a kind that TLS does not take.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise DeploymentError(f"{path}: cannot be read: {error.strerror}; make it with: tdcd certs") from error
    except (ValueError, TypeError) as error:
        raise DeploymentError(f"{path}: damaged or locked, not a private key in PEM form") from error
    if not isinstance(key, (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)):
        raise DeploymentError(f"{path}: neither a key of an elliptic curve nor RSA; make it with: tdcd certs")
    return key


def _begun(issuer: x509.Name, subject: x509.Name, key: PublicKey, days: float) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _usage(*, signing: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signing,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signing,
        crl_sign=signing,
        encipher_only=False,
        decipher_only=False,
    )


def _written(pair: Pair, certificate: x509.Certificate, key: PrivateKey) -> Pair:
    write_key(pair.key, key)
    write_atomically(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return pair


def write_key(path: Path, key: PrivateKey) -> None:
    """Write a private key, for its owner's eyes only."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeploymentError(f"{path.parent}: cannot be made: {error.strerror}") from error
    write_atomically(path, private, private=True)
